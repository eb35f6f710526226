"""`clover evaluate`: the acceptance of a draft, the tokens that it predicts badly, and its accuracy at each depth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from rich.console import Console

from clover.drafting import StaticTree, own_shape, parse_tree
from clover.drafts import DraftModel
from clover.errors import UserError
from clover.measure.acceptance import (
    EvaluatedSetting,
    Group,
    PositionBin,
    count_groups,
    count_kinds,
    count_places,
)
from clover.measure.budget import Budget, growing_parts
from clover.measure.comparison import affordable_tokens, warm_up
from clover.measure.methods import Method
from clover.measure.options import EvaluateOptions
from clover.measure.ranks import MAX_HEADS, TOP, HeadAccuracy, RankPath, TopCounts, rank_texts
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.report.words import mode, number_of
from clover.measure.session import AUTO, LOOKUP, OWN, Session
from clover.measure.systems import draft_kind
from clover.measure.timing import Run, join_runs, time_decoding
from clover.measure.trees import tree_label
from clover.options import next_command

_NEW_TOKENS, _FEWEST_NEW_TOKENS = 128, 2
_SIDE_BY_SIDE = 3  # settings in one table of kinds
_IN_A_LINE = 4  # depths of a tree
Key = tuple[str, float]  # a tree and a temperature


@dataclass
class Evaluation:
    """The measurements so far: the numbers of the prompts in `order`, their runs by setting, and their rank paths."""

    session: Session
    order: list[int] = field(default_factory=list)
    runs: dict[Key, list[Run]] = field(default_factory=dict)
    ranks: list[tuple[RankPath, ...]] = field(default_factory=list)

    def add(
        self, numbers: Sequence[int], runs: Mapping[Key, Run], ranks: Sequence[tuple[RankPath, ...]]
    ) -> None:
        """Add the runs of some prompts at all settings."""
        self.order += numbers
        self.ranks += ranks
        for key, run in runs.items():
            self.runs.setdefault(key, []).append(run)

    def setting(self, key: Key, budget: int) -> EvaluatedSetting:
        """Return the acceptance of one tree, with at most `budget` draft tokens, at one temperature."""
        prompts, run = [self.session.prompts[number] for number in self.order], join_runs(self.runs[key])
        kinds = count_kinds(prompts, run, self.session.target.tokenizer)
        tree, temperature = key
        places = count_places(prompts, run)
        return EvaluatedSetting(tree, budget, temperature, count_groups(prompts, run), kinds, places=places)


def run_evaluate(
    options: EvaluateOptions, console: Console | None = None, errors: Console | None = None
) -> Report:
    """Measure, print the tables, and write the JSON file; UserError if an option, a file or a model cannot be used."""
    if options.details and (options.max_new_tokens or _NEW_TOKENS) < _FEWEST_NEW_TOKENS:
        raise UserError(
            f"max_new_tokens is {options.max_new_tokens}; depths are measured on 2 tokens or more"
        )
    check_outputs(json=options.json)
    for tree in options.trees:
        parse_tree(tree)
        if options.no_copies and tree in (AUTO, LOOKUP):
            raise UserError(f"--tree {tree} copies from the text; leave it or --no-copies out")
    budget = Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        lengths = options.max_new_tokens or _NEW_TOKENS, options.max_prompts
        session = Session.load(options, (options.draft,), options.files, *lengths)
        session = _shortened(session, options, budget)
        settings, heads = _measure(session, options, budget, progress)
    report = _report(session, options, settings, heads, budget)
    prompts = [word for file in options.files[:1] for word in ("--prompts", file)]
    line = next_command("how fast that is here", "bench", options, *prompts)
    publish(report, console, json=options.json, lines=[line])
    return report


def _shortened(session: Session, options: EvaluateOptions, budget: Budget) -> Session:
    """Return the session. It has shorter texts if the first prompt would take too long, and the user set no length."""
    if options.max_new_tokens is not None:
        return session
    engine, first = session.engine((*options.trees, OWN)[0]), session.requests()[:1]
    settings = max(len(options.trees), 1) * len(options.temperatures)
    seconds = settings * warm_up([Method(engine.tree.name, engine)], first)
    return replace(session, max_new_tokens=affordable_tokens(seconds, budget.left, session.max_new_tokens))


def _measure(
    session: Session, options: EvaluateOptions, budget: Budget, progress: Progress
) -> tuple[list[EvaluatedSetting], HeadAccuracy | None]:
    """Return the acceptance of each tree at each temperature and, with --details, the accuracy on greedy text.

    First a single prompt is measured at all settings, then more prompts at a time, spread over all groups.
    """
    if options.no_copies:
        session.draft.model.copy_nothing()
    engines = {tree: session.engine(tree) for tree in options.trees} or {OWN: session.engine(OWN)}
    settings = list(product(engines, options.temperatures))
    greedy = (settings[0][0], 0.0)  # its texts are used to measure the depths
    needed = dict.fromkeys(settings) | ({greedy: None} if options.details else {})
    found, draft = Evaluation(session), session.draft.model.for_inference()
    budget.start(progress)
    progress.begin(len(session.prompts))
    progress.say("decoding the first prompt")
    parts = list(growing_parts(len(session.prompts), options.batch_size))
    with budget.until_interrupted():
        for numbers in budget.each(parts):
            runs, ranks = dict[Key, Run](), list[tuple[RankPath, ...]]()
            for tree, temperature in needed:
                every = session.requests(temperature, options.seed)
                runs[tree, temperature] = time_decoding(engines[tree], [every[number] for number in numbers])
            if options.details:
                some = [session.requests()[number] for number in numbers]
                ranks = rank_texts(session.target, draft, some, runs[greedy].texts, MAX_HEADS)
            found.add(numbers, runs, ranks)
            tau = join_runs(found.runs[settings[0]]).acceptance.tau
            progress.reach(len(found.order), f"τ {tau:.2f} after {number_of(len(found.order), 'prompt')}")
    heads = HeadAccuracy.of(found.ranks, min(draft.max_depth, MAX_HEADS)) if options.details else None
    return [found.setting(key, engines[key[0]].policy.max_nodes - 1) for key in settings], heads


def _report(
    session: Session,
    options: EvaluateOptions,
    settings: Sequence[EvaluatedSetting],
    heads: HeadAccuracy | None,
    budget: Budget,
) -> Report:
    draft, first, done = session.draft, settings[0], len(settings[0].all.prompts)
    names = {OWN: f"own tree, {tree_label(StaticTree(own_shape(draft.model)).name)}"}
    prompts = f"{number_of(done, 'prompt')}, {session.max_new_tokens} new tokens each{session.left_out_words}"
    facts = {
        "target": session.target_name,
        "draft": draft.name,
        "system": draft_kind(draft.model.config) + ", copies nothing" * options.no_copies,
        "prompts": prompts,
    }
    if session.max_new_tokens < (options.max_new_tokens or _NEW_TOKENS):
        facts["shortened"] = f"from {_NEW_TOKENS} new tokens, to end in time; --max-new-tokens lifts that"
    if done < len(session.prompts):
        facts["ended"] = f"after {done} of {number_of(len(session.prompts), 'prompt')}, by {budget.why}"
    data = {"heads": heads and heads.to_dict(), "settings": [setting.to_dict() for setting in settings]}
    tree = names.get(first.tree, first.tree)
    return Report(
        f"τ {first.all.tau.text()} with {tree}, {mode(first.temperature)}",
        session.provenance("evaluate", options, "files"),
        [*facts.items(), *budget.facts],
        make_tables(settings, names, options.by_position, heads, depths_note(draft.model)),
        data=facts | {"system": draft.system} | data,
        notes=[("±", "one standard error over prompts or texts")],
    )


def depths_note(draft: DraftModel) -> str:
    """Return a note on how many depths the draft was trained for, and why a tree may have more."""
    trained = draft.trained_depths
    more = "" if draft.max_depth == trained else "; it repeats its last step as deep as a tree goes"
    return f"The draft was trained for {number_of(trained, 'depth')}{more}."


def make_tables(
    settings: Sequence[EvaluatedSetting],
    names: Mapping[str, str] | None = None,
    by_position: bool = False,
    heads: HeadAccuracy | None = None,
    note: str = "",
) -> list[Table]:
    """Return the tables of acceptance and of weak kinds of tokens, and the optional ones.

    Args:
        settings: the measurements.
        names: readable names of trees.
        by_position: whether to show τ by the position in the text.
        heads: the accuracy at each depth; with it, the acceptance at each depth is shown, too.
        note: a note on the depths.
    """
    names, some = names or {}, range(0, len(settings), _SIDE_BY_SIDE)
    tables = [_acceptance_table(settings, names, heads is not None)]
    tables += [_place_table(settings, names)] if by_position else []
    tables += [_weakness_table(settings[start : start + _SIDE_BY_SIDE]) for start in some]
    if heads is None:
        return tables
    forced = "How often the text's next token is among the best 1, 2, 3, 5, 10. "
    chained = "Right only where the first choices at all depths before were right, too. "
    return [
        *tables,
        _head_table(heads, heads.forced, "Accuracy at each depth, forced with the text, %", forced + note),
        _head_table(heads, heads.chained, "Accuracy at each depth, chained, %", chained + note),
    ]


def _acceptance_table(settings: Sequence[EvaluatedSetting], names: Mapping[str, str], details: bool) -> Table:
    rows = [
        (setting, group)
        for setting in settings
        for group in (setting.all, *(setting.groups if len(setting.groups) > 1 else ()))
    ]
    columns: dict[str, Callable[[tuple[EvaluatedSetting, Group]], str]] = {
        "tree": lambda row: names.get(row[0].tree, row[0].tree),
        "T": lambda row: f"{row[0].temperature:g}",
        "prompts of": lambda row: row[1].name,
        "prompts": lambda row: str(len(row[1].acceptances)),
        "tokens": lambda row: f"{row[1].total.emitted:,}",
        "τ": lambda row: row[1].tau.text(),
    }
    note = "τ: tokens per step, the bonus token included"
    if details:
        columns["accepted at depth 1, 2, …, %"] = lambda row: _depths(row[1])
        note += "; at each depth, of the steps that got there"
    one_group = () if any(len(setting.groups) > 1 for setting in settings) else ("prompts of",)
    optional = ("prompts", "tokens", *one_group)
    return Table.of(
        "Acceptance", rows, columns, note + ".", group=lambda row: id(row[0]), words=3, optional=optional
    )


def _place_table(settings: Sequence[EvaluatedSetting], names: Mapping[str, str]) -> Table:
    rows = [(setting, place) for setting in settings for place in setting.places]
    columns: dict[str, Callable[[tuple[EvaluatedSetting, PositionBin]], str]] = {
        "tree": lambda row: names.get(row[0].tree, row[0].tree),
        "T": lambda row: f"{row[0].temperature:g}",
        "position": lambda row: f"{row[1].start:,} – {row[1].end - 1:,}",
        "texts": lambda row: str(row[1].texts),
        "steps": lambda row: f"{row[1].steps:,}",
        "tokens": lambda row: f"{row[1].tokens:,}",
        "τ": lambda row: row[1].tau.text(),
    }
    note = "τ of the steps that begin there; positions count from the start of the prompt."
    group = {"group": lambda row: id(row[0]), "once": ("tree", "T"), "strong": lambda row: False}
    return Table.of(
        "By position in the text", rows, columns, note, words=2, optional=("texts", "steps"), **group
    )


def _depths(group: Group) -> str:
    shares = [_percent(depth, 0).replace(" ", "") for depth in group.depths]
    lines = ["  ".join(shares[at : at + _IN_A_LINE]) for at in range(0, len(shares), _IN_A_LINE)]
    return "\n".join(lines) or "–"


def _weakness_table(settings: Sequence[EvaluatedSetting]) -> Table:
    note = "% of the new tokens that the draft gave, and their number; the target itself gave the others."
    names = [f"{Path(setting.tree).name}, T {setting.temperature:g}" for setting in settings]
    cells = [
        {share.kind: f"{_percent(share.share)} of {share.emitted:,}" for share in setting.kinds}
        for setting in settings
    ]
    kinds = dict.fromkeys(kind for column in cells for kind in column)
    rows = [[kind, *(column.get(kind, "–") for column in cells)] for kind in kinds]
    return Table("Where the draft is weak", ("new tokens", *names), rows, note)


def _head_table(heads: HeadAccuracy, counts: TopCounts, title: str, note: str) -> Table:
    rows = [
        [str(head), f"{positions:,}", *(map(_percent, row) if positions else "–" * len(TOP))]
        for head, (positions, row) in enumerate(zip(heads.totals, heads.shares(counts), strict=True), 1)
    ]
    columns = ("depth", "positions", *(f"top {size}" for size in TOP))
    return Table(title, columns, rows, note, optional=columns[-2:2:-1])  # on narrow terminals


def _percent(share: Estimate, digits: int = 1) -> str:
    return share.scaled(100).text(digits)
