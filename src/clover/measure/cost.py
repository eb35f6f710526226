"""`clover cost`: the τ that a draft must reach on this machine, and the number of tokens that pay for its training.

Training costs T · p_train, and each token saves (t_plain - t_plain / s) · p_serve, with the speed-up s. So

    n* = T · (p_train / p_serve) / (t_plain · (1 - 1/s))
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from clover import packaged
from clover.drafting import StaticTree, own_shape, parse_tree
from clover.drafts import DraftModel
from clover.drafts.loading import find_system
from clover.drafts.vocabulary import default_size
from clover.errors import UserError
from clover.measure.budget import Budget
from clover.measure.options import CostOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.report.words import count, duration, times
from clover.measure.session import Session
from clover.measure.step_costs import TreeCost, measure_steps
from clover.measure.steps import share_time
from clover.measure.systems import draft_kind
from clover.measure.trees import tree_label
from clover.options import next_command
from clover.target import TargetWeights
from clover.train.recipes import DEFAULT_SYSTEM
from clover.train.record import RECORD_FILE, read_record
from clover.tree import TreeShape

SPEEDUPS = (1.0, 1.5, 2.0)
_STEPS, _FEWEST = 80, 2  # timed steps of each tree, and the minimum, even if the time is up
_CHAINS = (1, 2, 4, 8)
_WRITING_SHARE = 0.3  # the share of a batch size's time in which the target writes the forced text
_TAUS = (2.0, 3.0, 4.0)  # the default values of τ for the table of tokens that pay for a training
_HOUR = 3600.0
# Results of short trainings; docs/results.md has commands, dates, revisions and machines.
_REACHED = (
    "in ten minutes of training, SmolLM2-135M: τ 1.50 ± 0.06 with a chain of 3, 1.95 ± 0.08 with 25 nodes (clover2); "
    "in eight, Qwen2.5-Coder-0.5B on code: 1.62 ± 0.07 with a chain of 5, 2.06 ± 0.14 with 25 nodes (docs/results.md)"
)


@dataclass(frozen=True)
class TrainingCost:
    """The seconds of a training, and the prices per hour of the machine that trains and of the one that decodes.

    Unless both prices are known, an hour of either costs the same. `start_from` is the draft that the training started
    from; `seconds` do not include the training of that draft.
    """

    seconds: float
    price: float | None = None
    serving_price: float | None = None
    start_from: str | None = None

    @property
    def words(self) -> str:
        """Return time and cost as text, as far as they are known.

        >>> TrainingCost(90, start_from="first").words
        '1:30 min; it went on from first, whose training is not counted'
        """
        words = duration(self.seconds)
        if self.price is not None:
            words += f", {self.price * self.seconds / _HOUR:.2f} at {self.price:g} per hour"
        if self.start_from is not None:
            words += f"; it went on from {self.start_from}, whose training is not counted"
        return words

    def paying_tokens(self, plain_seconds: float, speedup: float) -> float | None:
        """Return the number of tokens that pays for the training; None if none does.

        `plain_seconds` is the time per token of plain decoding.

        >>> TrainingCost(3600).paying_tokens(0.01, 2.0), TrainingCost(3600, 1.0, 2.0).paying_tokens(0.01, 2.0)
        (720000.0, 360000.0)
        """
        if speedup <= 1:
            return None
        ratio = self.price / self.serving_price if self.price and self.serving_price else 1.0
        return ratio * self.seconds / (plain_seconds * (1 - 1 / speedup))


def recorded_cost(draft: str) -> TrainingCost | None:
    """Return the cost of a draft's last training from its record; None without a record; UserError if it is damaged."""
    if not Path(draft, RECORD_FILE).is_file():
        return None
    record = read_record(draft)
    seconds = record.config.writing_seconds + record.result.seconds
    return TrainingCost(seconds, start_from=record.config.start_from)


def run_cost(options: CostOptions, console: Console | None = None, errors: Console | None = None) -> None:
    """Measure, print the tables, and write the JSON file.

    UserError, if possible before anything is measured, if an option, a file or a model cannot be used.
    """
    shapes, budget = _check(options), Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        drafts = () if options.draft is None else (options.draft,)
        lengths = options.max_new_tokens, max(options.batch_sizes)
        session = Session.load(options, drafts, options.prompts, *lengths)
        draft = session.draft.model if drafts else _new_draft(options, session.target)
        training, shapes = _training(options), shapes or _usual_shapes(draft)
        costs = _measure(options, session, draft, shapes, budget, progress)
    if options.draft is None:
        system = () if options.system is None else ("--system", options.system)
        line = next_command("train one", "train", options, "--data", "FILE", "--output", "DIR", *system)
    else:
        line = next_command("which τ it has", "evaluate", options)
    publish(
        _report(options, session, draft, shapes, costs, training, budget),
        console,
        json=options.json,
        lines=[line],
    )


def _check(options: CostOptions) -> list[TreeShape]:
    """Return the trees from the options; UserError, before any time is spent, for options that conflict."""
    if not options.draft:
        find_system(options.system or DEFAULT_SYSTEM)
    elif options.system is not None:
        raise UserError(f"{options.draft} has its system; --system is for a draft yet to be made")
    elif options.draft_vocabulary is not None:
        raise UserError(
            f"{options.draft} has its vocabulary; --draft-vocabulary is for a draft yet to be made"
        )
    for name in ("minutes", "price", "serving_price"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{name} is {value:g}; it must be more than 0")
    if options.serving_price is not None and options.price is None:
        raise UserError("a serving price was given but no price of training; give both, or --price alone")
    check_outputs(json=options.json)
    shapes = []
    for name in options.trees:
        tree = parse_tree(name)
        if not isinstance(tree, StaticTree):
            raise UserError(f"{name} is no static tree; give one, such as chain:4")
        shapes.append(tree.shape)
    return shapes


def _new_draft(options: CostOptions, target: TargetWeights) -> DraftModel:
    """Return a draft with random weights, because the time of a step does not depend on them."""
    torch.manual_seed(options.seed)
    size = options.draft_vocabulary or default_size(target.vocab_size)
    draft: Any = find_system(options.system or DEFAULT_SYSTEM).from_target(target, draft_vocab_size=size)
    return draft.to(target.dtype).eval()


def _training(options: CostOptions) -> TrainingCost | None:
    """Return the cost of the training from the options, or from its record; None if neither is known."""
    cost = recorded_cost(packaged.draft_place(options.draft)) if options.draft else None
    cost = cost if options.minutes is None else TrainingCost(60 * options.minutes)
    if cost is None and options.price is not None:
        raise UserError("a price was given but not how long the training takes; give --minutes, too")
    return cost and replace(cost, price=options.price, serving_price=options.serving_price)


def _usual_shapes(draft: DraftModel) -> list[TreeShape]:
    """Return chains, and then the draft's own tree."""
    own, depths = own_shape(draft), [depth for depth in _CHAINS if depth <= draft.max_depth]
    return [*(shape for shape in map(TreeShape.chain, depths) if shape != own), own]


def _measure(
    options: CostOptions,
    session: Session,
    draft: DraftModel,
    shapes: Sequence[TreeShape],
    budget: Budget,
    progress: Progress,
) -> list[TreeCost]:
    """Return the costs of each tree at each batch size.

    The result of each batch size is printed as soon as it is known.
    """
    budget.start(progress)
    progress.begin(len(options.batch_sizes))
    costs = list[TreeCost]()
    with budget.until_interrupted():
        timed = share_time(sorted(options.batch_sizes), budget, _STEPS, _FEWEST, progress)
        for left, (size, enough) in zip(range(len(options.batch_sizes), 0, -1), timed, strict=False):
            batch = session.batches(size)[0]
            seconds = _WRITING_SHARE * budget.left / left
            found = measure_steps(session.target, draft, shapes, batch, enough, options.seed, seconds)
            costs += found
            progress.log(first_words(found))
    return costs


def first_words(costs: Sequence[TreeCost]) -> str:
    """Return the result of one batch size in one line: the tree that needs the lowest τ to pay.

    >>> from clover.measure.step_costs import TextCost
    >>> from clover.measure.steps import StepCost
    >>> plain = TextCost(100, 0.0, StepCost(1, "plain", 1, 0.01, fixed=0.01))
    >>> drafted = TextCost(100, 0.0, StepCost(1, "chain:3", 4, 0.012, fixed=0.012))
    >>> first_words([TreeCost(plain, drafted, 3)])
    'batch 1: a plain step takes 10.0 ± 0.0 ms; chain:3 pays from τ 1.20 on, 1.5× needs τ 1.80'
    """
    plain, best = costs[0].plain.step, min(costs, key=lambda one: one.tau(1.0) or math.inf)
    step = f"batch {plain.batch_size}: a plain step takes {_milliseconds(plain.seconds, plain.error)} ms"
    even, faster, name = best.tau(1.0), best.tau(1.5), tree_label(best.drafted.step.tree)
    if even is None:
        return f"{step}; no tree pays, whatever is accepted"
    more = f", 1.5× needs τ {faster:.2f}" if faster else ""
    return f"{step}; {name} pays from τ {even:.2f} on{more}"


def _report(
    options: CostOptions,
    session: Session,
    draft: DraftModel,
    shapes: Sequence[TreeShape],
    costs: list[TreeCost],
    training: TrainingCost | None,
    budget: Budget,
) -> Report:
    system = draft_kind(draft.config)
    parameters = count(sum(weight.numel() for weight in draft.parameters()))
    size = draft.config.draft_vocab_size
    tokens = f", proposes from {size:,} tokens" if size else ""
    facts = [
        ("target", session.target_name),
        ("draft", f"{system}, {options.draft or 'random weights'}, {parameters} parameters{tokens}"),
    ]
    if missing := [*_missing(options.batch_sizes, shapes, costs)]:
        facts.append(("not timed", f"{'; '.join(missing)}; by {budget.why}"))
    tables, taus = [tau_table(costs, options.taus)], options.taus
    if training is not None:
        facts.append(("training", training.words))
        taus = taus or _TAUS
        tables.append(break_even_table(costs, training, taus))
    return Report(
        title=f"{system}: the τ it needs on this machine",
        provenance=session.provenance("cost", options, "prompts"),
        facts=[*facts, *budget.facts],
        tables=tables,
        data={
            "training_seconds": training.seconds if training else None,
            "training_start_from": training.start_from if training else None,
            "trees": [as_data(one, training, taus) for one in costs],
        },
        notes=[
            ("±", "one standard error"),
            ("–", "more than the tree can give, its depth + 1"),
            *(() if options.draft else (("reached", _REACHED),)),
        ],
    )


def _missing(sizes: Sequence[int], shapes: Sequence[TreeShape], costs: Sequence[TreeCost]) -> Iterator[str]:
    """Yield descriptions of the trees that were not timed, and of the batch sizes that were not timed at all."""
    timed = {(one.plain.step.batch_size, one.drafted.step.tree) for one in costs}
    names, reached = [StaticTree(shape).name for shape in shapes], {size for size, _ in timed}
    for size in sorted(reached):
        if left := [tree_label(name) for name in names if (size, name) not in timed]:
            yield f"at batch size {size} {', '.join(left)}"
    if untimed := sorted({*sizes} - reached):
        yield f"batch size {', '.join(map(str, untimed))}"


def tau_table(costs: Sequence[TreeCost], taus: Sequence[float]) -> Table:
    """Return a table of the τ that each of SPEEDUPS needs, and of the speed-up at each of `taus`."""
    columns = {
        "plain\nstep, ms": lambda one: _milliseconds(one.plain.step.seconds, one.plain.step.error),
        "step,\nms": lambda one: _milliseconds(
            one.drafted.step.at(1 + one.depth / 2), one.drafted.step.error
        ),
    }
    columns |= {f"τ for\n{speedup:.1f}×": partial(_tau_cell, speedup) for speedup in SPEEDUPS}
    columns |= {f"at τ {tau:g}": partial(_speedup_cell, tau) for tau in taus}
    note = f"τ: tokens per step and text; texts of {costs[0].plain.new_tokens} new tokens, prompts included"
    return _table("What τ must be", costs, columns, note, once=("batch", "plain\nstep, ms"))


def break_even_table(costs: Sequence[TreeCost], training: TrainingCost, taus: Sequence[float]) -> Table:
    """Return a table of the number of tokens that pays for the training, for the last tree of each batch size."""
    columns = {f"at τ {tau:g}": partial(_paying_cell, training, tau) for tau in taus}
    last = {one.plain.step.batch_size: one for one in costs}.values()
    return _table("Tokens after which the training has paid for itself", last, columns)


def _table(
    title: str,
    costs: Iterable[TreeCost],
    columns: dict[str, Callable[[TreeCost], str]],
    note: str = "",
    once: Sequence[str] = (),
) -> Table:
    named: dict[str, Callable[[TreeCost], str]] = {
        "batch": lambda one: str(one.plain.step.batch_size),
        "tree": lambda one: tree_label(one.drafted.step.tree),
    }
    group = named["batch"] if once else lambda one: ""
    return Table.of(
        title, costs, named | columns, note, group=group, once=once, strong=lambda one: False, words=2
    )


def _milliseconds(seconds: float, error: float) -> str:
    return Estimate(seconds, error).scaled(1e3).text(1)


def _tau_cell(speedup: float, one: TreeCost) -> str:
    tau = one.tau(speedup)
    return "–" if tau is None else f"{tau:.2f}"


def _speedup_cell(tau: float, one: TreeCost) -> str:
    return times(one.speedup(tau) if tau <= one.depth + 1 else None)


def _paying_cell(training: TrainingCost, tau: float, one: TreeCost) -> str:
    if tau > one.depth + 1:
        return "–"
    tokens = training.paying_tokens(one.plain_token_seconds, one.speedup(tau))
    return "never" if tokens is None else count(tokens)


def as_data(one: TreeCost, training: TrainingCost | None, taus: Sequence[float]) -> dict[str, Any]:
    """Return all numbers of a tree as JSON values."""
    speedups = {f"{tau:g}": one.speedup(tau) for tau in taus if tau <= one.depth + 1}
    paying = dict[str, float | None]()
    if training:
        seconds = one.plain_token_seconds
        paying = {tau: training.paying_tokens(seconds, faster) for tau, faster in speedups.items()}
    return {
        **asdict(one.drafted.step),
        "depth": one.depth,
        "prefill": one.drafted.prefill,
        "plain": asdict(one.plain),
        "tau_for": {f"{speedup:g}": one.tau(speedup) for speedup in SPEEDUPS},
        "speedup_at": speedups,
        "paying_tokens_at": paying,
    }
