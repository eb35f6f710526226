"""`clover cost` from its options to the report."""

import math
from dataclasses import replace
from typing import Any

import torch

from clover import assets
from clover.drafting import own_tree
from clover.drafts import DraftModel, load_usable
from clover.drafts.loading import find_system
from clover.drafts.vocabulary import default_size
from clover.engine import Request
from clover.errors import UserError
from clover.measure.cost.breakeven import TrainingCost, recorded_cost
from clover.measure.cost.report import as_data, break_even_table, tau_table
from clover.measure.cost.steps import TreeCost, measure_steps
from clover.measure.evaluate.run import choose_prompts
from clover.measure.options import CostOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.words import count, draft_kind
from clover.measure.tune.texts import fill_batch
from clover.measure.tune.timing import share_time
from clover.options import command_line
from clover.target import TargetModel
from clover.tree import TreeShape, parse_tree

_WANTED, _FEWEST = 80, 12  # steps of each tree: so many are wanted, so many are taken however late it is
_CHAINS = (1, 2, 4, 8)
_SYSTEM = "recall"  # of a draft yet to be made, where nobody chooses
_TAUS = (2.0, 3.0, 4.0)  # at which a training pays, if none are given


def run_cost(options: CostOptions) -> None:
    """Measure, print the tables, and write the JSON file.

    UserError if an option, a file or a model cannot be used; before anything is measured where possible.
    """
    shapes = _check(options)
    with Progress() as progress:
        progress.say("loading target and draft")
        target = TargetModel.load(options.target or assets.TARGET, **options.loading)
        draft = _draft(options, target)
        training = _training(options)
        costs = _measure(options, target, draft, shapes, progress)
    origin = Provenance.here(command_line("cost", options, "prompts"), target.device, target.dtype)
    publish(_report(options, origin, draft, costs, training), json=options.json)


def _check(options: CostOptions) -> list[TreeShape]:
    """The trees that were named; raises a UserError, before any time is spent, for what does not go together."""
    if not options.draft:
        find_system(options.system or _SYSTEM)
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
    shapes = [parse_tree(name) for name in options.trees]
    for name, shape in zip(options.trees, shapes, strict=True):
        if not isinstance(shape, TreeShape):
            raise UserError(f"{name} has another shape at every step; give static trees, such as chain:4")
    return [shape for shape in shapes if isinstance(shape, TreeShape)]


def _draft(options: CostOptions, target: TargetModel) -> DraftModel:
    """The draft that was named, or a new one with random weights: steps take as long with any."""
    if options.draft is not None:
        return load_usable(assets.draft_place(options.draft), target)
    torch.manual_seed(options.seed)
    draft: Any = find_system(options.system or _SYSTEM).from_target(target)
    size = options.draft_vocabulary or default_size(target.vocab_size)
    if size is not None:
        if size > target.vocab_size:
            raise UserError(f"draft_vocabulary must be from 1 to the target's {target.vocab_size}")
        draft.reduce_vocabulary(torch.arange(size))
    return draft.to(target.dtype).eval()


def _training(options: CostOptions) -> TrainingCost | None:
    """As long as the user says, or as is recorded; None where neither is known."""
    cost = recorded_cost(assets.draft_place(options.draft)) if options.draft else None
    cost = cost if options.minutes is None else TrainingCost(60 * options.minutes)
    if cost is None and options.price is not None:
        raise UserError("a price was given but not how long the training takes; give --minutes, too")
    return cost and replace(cost, price=options.price, serving_price=options.serving_price)


def _measure(
    options: CostOptions, target: TargetModel, draft: DraftModel, shapes: list[TreeShape], progress: Progress
) -> list[TreeCost]:
    """The costs of each tree at each batch size; of the draft's own tree the last."""
    own = own_tree(draft)
    chains = [TreeShape.chain(depth) for depth in _CHAINS if depth <= draft.max_depth]
    shapes = shapes or [*(shape for shape in chains if shape != own), own]
    length, most = options.max_new_tokens, max(options.batch_sizes)
    prompts, _ = choose_prompts(options.prompts, target, length, most)
    requests = [Request(one.tokens, length) for one in prompts]
    progress.begin(len(options.batch_sizes))
    costs = []
    for size, enough in share_time(options.batch_sizes, options.max_minutes, _WANTED, _FEWEST, progress):
        costs += measure_steps(target, draft, shapes, fill_batch(requests, size), enough, options.seed)
    return costs


def _report(
    options: CostOptions,
    origin: Provenance,
    draft: DraftModel,
    costs: list[TreeCost],
    training: TrainingCost | None,
) -> Report:
    system = draft_kind(draft.config)
    parameters = count(sum(weight.numel() for weight in draft.parameters()))
    size = draft.config.draft_vocab_size
    tokens = f", proposes from {size:,} tokens" if size else ""
    facts = [
        ("target", options.target or "embedded"),
        ("draft", f"{system}, {options.draft or 'random weights'}, {parameters} parameters{tokens}"),
    ]
    tables, taus = [tau_table(costs, options.taus)], options.taus
    if training is not None:
        facts.append(("training", training.words))
        taus = taus or _TAUS
        tables.append(break_even_table(costs, training, taus))
    trees = [as_data(one, training, taus) for one in costs]
    return Report(
        title=f"{system}: the τ it needs on this machine",
        provenance=origin,
        facts=facts,
        tables=tables,
        data={
            "training_seconds": training.seconds if training else None,
            "training_start_from": training.start_from if training else None,
            "trees": trees,
        },
        notes=[("–", "more than the tree can give, its depth + 1")],
    )
