"""`clover evaluate`: what the engine accepts of a draft, how accurate its heads are, and where it is weak."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from rich.console import Console

from clover.drafting import StaticTree, own_shape, parse_tree
from clover.errors import UserError
from clover.measure.acceptance import Group, Setting, count_groups, count_kinds
from clover.measure.options import EvaluateOptions
from clover.measure.ranks import MAX_HEADS, TOP, HeadAccuracy, TopCounts, rank_texts
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.statistics import Estimate
from clover.measure.report.table import Table
from clover.measure.report.words import number_of
from clover.measure.session import OWN, Session
from clover.measure.systems import draft_kind
from clover.measure.timing import decode
from clover.measure.trees import tree_label

_FEWEST_NEW_TOKENS = 2
_SIDE_BY_SIDE = 3  # settings in one table of kinds
_IN_A_LINE = 4  # depths of a tree


def run_evaluate(
    options: EvaluateOptions, console: Console | None = None, errors: Console | None = None
) -> Report:
    """Measure, print the tables, and write the JSON file; UserError if an option, a file or a model cannot be used."""
    if options.max_new_tokens < _FEWEST_NEW_TOKENS:
        raise UserError(f"max_new_tokens is {options.max_new_tokens}; heads are measured on 2 tokens or more")
    check_outputs(json=options.json)
    for tree in options.trees:
        parse_tree(tree)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        lengths = options.max_new_tokens, options.max_prompts
        session = Session.load(options, (options.draft,), options.files, *lengths)
        settings, heads = _measure(session, options, progress)
    report = _report(session, options, settings, heads)
    publish(report, console, json=options.json)
    return report


def _measure(
    session: Session, options: EvaluateOptions, progress: Progress
) -> tuple[list[Setting], HeadAccuracy]:
    """Return the acceptance of each tree at each temperature, and the accuracy of the heads on greedy text."""
    engines = {tree: session.engine(tree) for tree in options.trees} or {OWN: session.engine(OWN)}
    settings = list(product(engines, options.temperatures))
    greedy = (settings[0][0], 0.0)  # its texts are what the heads are measured on
    needed = dict.fromkeys([*settings, greedy])
    progress.begin(len(needed) + 1)
    runs = {}
    for tree, temperature in needed:
        share = progress.part(1, f"{tree}, temperature {temperature:g}")
        requests = session.requests(temperature, options.seed)
        runs[tree, temperature] = decode(
            engines[tree], requests, max_sequences=options.batch_size, progress=share
        )
    share, draft = progress.part(1, "accuracy of the heads"), session.draft.model.for_inference()
    paths = rank_texts(session.target, draft, session.requests(), runs[greedy].texts, MAX_HEADS, share)
    heads = HeadAccuracy.of(paths, min(draft.max_depth, MAX_HEADS))
    found = []
    for tree, temperature in settings:
        run, nodes = runs[tree, temperature], engines[tree].policy.max_nodes - 1
        kinds = count_kinds(session.prompts, run, session.target.tokenizer)
        found.append(Setting(tree, nodes, temperature, count_groups(session.prompts, run), kinds))
    return found, heads


def _report(
    session: Session, options: EvaluateOptions, settings: Sequence[Setting], heads: HeadAccuracy
) -> Report:
    draft = session.draft
    count = number_of(len(session.prompts), "prompt")
    facts = {
        "target": session.target_name,
        "draft": draft.name,
        "system": draft_kind(draft.model.config),
        "prompts": f"{count}, {options.max_new_tokens} new tokens each{session.left_out_words}",
        "heads measured on": "what the target writes at temperature 0",
    }
    data = {"heads": heads.to_dict(), "settings": [setting.to_dict() for setting in settings]}
    names = {OWN: f"own tree, {tree_label(StaticTree(own_shape(draft.model)).name)}"}
    return Report(
        "How good the draft is",
        session.provenance("evaluate", options, "files"),
        list(facts.items()),
        make_tables(heads, settings, names),
        data=facts | {"system": draft.system} | data,
        notes=[("±", "one standard error over prompts or texts")],
    )


def make_tables(
    heads: HeadAccuracy, settings: Sequence[Setting], names: Mapping[str, str] | None = None
) -> list[Table]:
    """Return acceptance, where the draft is weak, and the accuracy of its heads; `names` are of trees, for people."""
    some = range(0, len(settings), _SIDE_BY_SIDE)
    return [
        _acceptance_table(settings, names or {}),
        *(_weakness_table(settings[start : start + _SIDE_BY_SIDE]) for start in some),
        _head_table(
            heads,
            heads.forced,
            "Accuracy of the heads, forced with the text, %",
            "How often the text's next token is among a head's best 1, 2, 3, 5, 10.",
        ),
        _head_table(
            heads,
            heads.chained,
            "Accuracy of the heads, chained, %",
            "A head is right only where the first choices of all heads before it were right, too.",
        ),
    ]


def _acceptance_table(settings: Sequence[Setting], names: Mapping[str, str]) -> Table:
    rows = [
        (setting, group)
        for setting in settings
        for group in (setting.all, *(setting.groups if len(setting.groups) > 1 else ()))
    ]
    columns: dict[str, Callable[[tuple[Setting, Group]], str]] = {
        "tree": lambda row: names.get(row[0].tree, row[0].tree),
        "T": lambda row: f"{row[0].temperature:g}",
        "prompts of": lambda row: row[1].name,
        "prompts": lambda row: str(len(row[1].acceptances)),
        "tokens": lambda row: f"{row[1].total.emitted:,}",
        "τ": lambda row: row[1].tau.text(),
        "accepted at depth 1, 2, …, %": lambda row: _depths(row[1]),
    }
    one_group = () if any(len(setting.groups) > 1 for setting in settings) else ("prompts of",)
    note = "τ: tokens per step, the bonus token included; at each depth, of the steps that got there."
    optional = ("prompts", "tokens", *one_group)
    return Table.of(
        "Acceptance", rows, columns, note, group=lambda row: id(row[0]), words=3, optional=optional
    )


def _depths(group: Group) -> str:
    shares = [_percent(depth, 0).replace(" ", "") for depth in group.depths]
    lines = ["  ".join(shares[at : at + _IN_A_LINE]) for at in range(0, len(shares), _IN_A_LINE)]
    return "\n".join(lines) or "–"


def _weakness_table(settings: Sequence[Setting]) -> Table:
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
    return Table(title, ("head", "positions", *(f"top {size}" for size in TOP)), rows, note)


def _percent(share: Estimate, digits: int = 1) -> str:
    return share.scaled(100).text(digits)
