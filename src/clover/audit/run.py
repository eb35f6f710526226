"""The audit from its options to the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count, product, zip_longest
from math import inf
from typing import Any

import torch
from rich.console import Console

from clover import assets
from clover.audit.judge import ALARM, SAFETY, AuditResult, Judge, PlainSide, measure_rounding
from clover.audit.model import ModelSource
from clover.audit.options import AuditOptions
from clover.audit.perplexity import measure_perplexity
from clover.audit.server import Endpoint, server_params
from clover.audit.texts import ENDED, Case, EngineSource, Text, Token, make_modes, mixed_params
from clover.data.formats import message_text
from clover.data.tasks import read_tasks, spread
from clover.drafting import parse_tree
from clover.engine.compiled.runner import check_compiled
from clover.engine.text import token_name
from clover.errors import UserError
from clover.files import check_output_file, write_text
from clover.measure.budget import Budget
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table
from clover.measure.report.words import number_of
from clover.measure.session import HELD_OUT, PLAIN, Session
from clover.options import ModelOptions, command_line, flag_of, next_command

Source = EngineSource | Endpoint
Fact = tuple[str, str]
_TREES, _CHAIN = ("auto", "own", "lookup"), 4  # These trees are the default, with a chain of this depth.
# Options that only an audit in this process has, and options that only the audit of a server has.
_LOCAL = (*(one.name for one in fields(ModelOptions)), "draft", "trees", "compile")
_REMOTE = ("plain_server", "model")
# The shares of the remaining time for the reference, its rounding, and perplexity.
_REFERENCE_SHARE, _ROUNDING_SHARE, _PERPLEXITY_SHARE = 0.4, 0.3, 0.1
_SHOWN = 20  # the most mismatches in the table
_NOTES = (
    (
        "near-tie",
        f"the gap is at most {SAFETY:g} times the measured rounding: another batch size does the same",
    ),
    ("off", "the median and the largest error of log-probabilities, in units of that rounding"),
)


@dataclass
class Audit:
    """Lets the plain side and every method write the same texts, and compares them.

    `methods` and `modes` have names; the cases of a mode share their kind of parameters, and `batch_sizes` of them are
    decoded at once. `temperature` is that of the draws, for sampled texts that may differ from the plain side's; 0 for
    no draws. If the time was too short, `ended` describes the progress, and `missing` lists the omitted parts.
    """

    plain: PlainSide
    methods: Mapping[str, Source]
    modes: Mapping[str, Sequence[Case]]
    batch_sizes: Sequence[int]
    temperature: float = 0.0
    ended: str = ""
    missing: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Return the most reports of `run`."""
        return len(self._cases) + 1 + len(self._comparisons) + len(self.methods)

    @property
    def _cases(self) -> list[Case]:
        """Return the cases of all modes, interleaved and without repetitions."""
        rows = zip_longest(*self.modes.values())
        return list(dict.fromkeys(case for row in rows for case in row if case is not None))

    @property
    def _comparisons(self) -> list[tuple[str, str, int]]:
        return list(product(self.modes, self.methods, self.batch_sizes))

    @property
    def _drawn(self) -> list[str]:
        """Return the methods whose sampled texts may differ from the plain side's."""
        return [name for name, source in self.methods.items() if self.temperature and not source.exact]

    def run(
        self, report: Callable[[str], None] = lambda doing: None, budget: Budget | None = None
    ) -> AuditResult:
        """Write and compare everything, or as much as the time allows; `report` gets the name of each next part."""
        budget, cases = budget or Budget(inf), self._cases
        texts = self._write_reference(report, budget)
        report("measuring the rounding")
        rows, share = max(4, *self.batch_sizes), budget.part(_ROUNDING_SHARE)
        rounding = measure_rounding(self.plain, texts, rows, self.temperature, share)
        result = AuditResult(
            rounding, p_values=self.plain.test_written() if isinstance(self.plain, ModelSource) else {}
        )
        if count := rounding.nonfinite:
            every = count + rounding.positions
            result.other.append(f"the model's logits are not finite at {count} of {every} positions")
        over, comparisons = budget.part(), self._comparisons
        judge, drawn = Judge(self.plain, rounding, over), self._drawn
        with budget.until_interrupted():
            for mode, name, size in budget.each(comparisons):
                report(method := f"{name}, batch {size}, {mode}")
                source, rows = self.methods[name], self.modes[mode]
                compared = [
                    (case, texts[case], text)
                    for case, text in zip(rows, source.write(rows, size, over), strict=True)
                    if (source.exact or case.params.greedy) and (text.tokens or not text.cut)
                ]
                result.methods.append(judge.compare(method, compared))
            for name in budget.each(self._drawn):
                report(f"draws, {name}")
                draws = next(iter(self.modes.values())), self.temperature, SAFETY * rounding.pair
                p_values, problems = self.plain.test_draws(name, self.methods[name].write, *draws, over)
                result.p_values |= p_values
                result.other += problems
                drawn = drawn if over() else [one for one in drawn if one != name]
        if not result.methods:
            raise KeyboardInterrupt
        done, total, cut = len(result.methods), len(comparisons), sum(text.cut for text in texts.values())
        self.missing = [f"{name}, batch {size}, {mode}" for mode, name, size in comparisons[done:]]
        self.missing += [f"the rest of {one.name}" for one in result.methods if one.cut]
        self.missing += [f"all or the rest of the draws of {name}" for name in drawn]
        if len(texts) < len(cases) or cut or self.missing:
            what = f"{len(texts)} of {len(cases)} texts" + f" ({cut} cut short)" * bool(cut)
            self.ended = f"after {what}, {done} of {total} comparisons, by {budget.why}"
        return result

    def _write_reference(self, report: Callable[[str], None], budget: Budget) -> dict[Case, Text]:
        """Return the reference's texts, as many as its share of the time allows; `modes` then has only their cases.

        Each mode has at least one text. The case of a text that is cut by the time limit is shortened to that text.
        """
        over, begun, texts = budget.part(_REFERENCE_SHARE), dict[Case, Case](), dict[Case, Text]()
        for number, case in enumerate(self._cases):
            first = number < len(self.modes)
            if not first and over():
                break
            report("the reference")
            enough = budget.part(_REFERENCE_SHARE / len(self.modes)) if first else over
            text = self.plain.write([case], 1, enough)[0]
            begun[case] = replace(case, new_tokens=len(text.tokens)) if text.cut else case
            texts[begun[case]] = text
        modes = {mode: [begun[one] for one in rows if one in begun] for mode, rows in self.modes.items()}
        self.modes = {mode: rows for mode, rows in modes.items() if rows}
        return texts


def audit(options: AuditOptions, console: Console | None = None, errors: Console | None = None) -> bool:
    """Audit, print the report, and write the files that the options name; return True if there is no defect.

    The report goes to `console`, progress to `errors`; by default to standard output and error. UserError if an option,
    a file, a model or a server cannot be used; if possible, before anything is decoded.
    """
    _check(options)
    budget = Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading")
        audit, facts = _server_audit(options) if options.server else _target_audit(options, budget)
        budget.start(progress)
        progress.begin(1.0)
        doings = count()
        result = audit.run(
            lambda doing: progress.reach(max(next(doings) / audit.steps, budget.share), doing), budget
        )
    report = make_audit_report(options, audit, result, [*facts, *budget.facts])
    if options.html is not None:
        write_text(options.html, report.html())  # before anything is printed, as in `publish`
    lines = [f"wrote {options.html}"] if options.html else []
    if not result.defects and not options.server:
        lines.append(next_command("use it", "serve", options))
    publish(report, console, options.json, lines=lines)
    return not result.defects


def _check(options: AuditOptions) -> None:
    default, server = AuditOptions(), options.server is not None
    reason = "--server is audited as it runs" if server else "without --server, no server is audited"
    named = [
        flag_of(name, isinstance(getattr(default, name), tuple))
        for name in (_LOCAL if server else _REMOTE)
        if getattr(options, name) != getattr(default, name)
    ]
    if named:
        raise UserError(f"{reason}; leave out {', '.join(named)}")
    if options.draft is not None and not _needs_draft(options):
        raise UserError("these trees need no draft; leave --draft out, or name another --tree")
    check_compiled(options.compile, options.weights, options.exact)
    if options.prompts is not None:
        read_tasks([options.prompts])  # to find errors before a target is loaded
    check_outputs(options.json)
    if options.html is not None:
        check_output_file(options.html)


def _server_audit(options: AuditOptions) -> tuple[Audit, list[Fact]]:
    assert options.server is not None
    tasks = spread(read_tasks([options.prompts or assets.HELD_OUT_PROMPTS]), options.max_prompts)
    texts = [task.text or "\n\n".join(map(message_text, task.messages)) for task in tasks]
    plain_url, exact = options.plain_server or options.server, options.plain_server is None
    same = plain_url == options.server
    source, plain = (
        Endpoint(url, options.api_key, options.model, speculation if same else None, exact).named()
        for url, speculation in ((options.server, True), (plain_url, False))
    )
    sampled = server_params(options.temperature) if options.temperature and exact else []
    modes = make_modes(texts, options.max_new_tokens, sampled, max(options.batch_sizes))
    audit = Audit(plain, {"server": source}, modes, options.batch_sizes, options.temperature)
    plain_fact = "the same, without speculation" if same else plain_url
    return audit, [("server", options.server), ("plain_server", plain_fact)]


def _target_audit(options: AuditOptions, budget: Budget) -> tuple[Audit, list[Fact]]:
    drafts = (options.draft,) if _needs_draft(options) else ()
    limits = options.max_new_tokens, options.max_prompts
    session = Session.load(options, drafts, options.prompts, *limits, group=HELD_OUT)
    trees, hot = [PLAIN, *(options.trees or _TREES)], options.temperature
    if not options.trees:
        trees.append(f"chain:{min(_CHAIN, session.draft.model.max_depth)}")
    methods = {tree: EngineSource(session.engine(tree, compile=options.compile)) for tree in trees}
    sampled = mixed_params(hot, session.target.vocab_size) if hot else []
    prompts = [one.tokens for one in session.prompts]
    modes = make_modes(prompts, options.max_new_tokens, sampled, max(options.batch_sizes))
    audit = Audit(ModelSource(session.target), methods, modes, options.batch_sizes, hot)
    draft = session.draft.name if session.drafts else "none"
    facts = [("target", session.target_name + session.left_out_words), ("draft", draft)]
    copied, share = session.target.copied, budget.part(_PERPLEXITY_SHARE)
    quality = None if copied is None else measure_perplexity(session.target, prompts, share)
    return audit, [*facts, *([(session.target.weights or "exact", str(quality))] if quality else [])]


def _needs_draft(options: AuditOptions) -> bool:
    trees = [parse_tree(tree) for tree in options.trees or _TREES]
    return any(tree.needs_draft for tree in trees)


def make_audit_report(
    options: AuditOptions, audit: Audit, result: AuditResult, facts: Sequence[Fact]
) -> Report:
    """Return the report; its `data` is that of --json. It shows the texts of tokens instead of their ids."""
    device, dtype, tokenizer = torch.device("cpu"), torch.float32, None
    if isinstance(audit.plain, ModelSource):
        target = audit.plain.target
        device, dtype, tokenizer = target.device, target.dtype, target.tokenizer
    rounding, p_value, near_ties = result.rounding, result.p_value, result.near_ties
    prompts = number_of(len({case.number for cases in audit.modes.values() for case in cases}), "prompt")
    sizes = ", ".join(map(str, options.batch_sizes))
    sampled = f" and sampled at T = {options.temperature:g}" if options.temperature else ""
    run = f"{prompts}, {options.max_new_tokens} new tokens each at most, batches of {sizes}, greedy{sampled}"
    size = f"log-probabilities {rounding.typical:.2g}, a difference of two {rounding.pair:.2g}"
    place = f"{size}, measured at {rounding.positions} positions"
    chance = [("p", f"{p_value:.2g}, corrected; below {ALARM:g} is a defect")] if p_value is not None else []
    clean = "Clean so far" if audit.ended else "Clean"
    title = f"{clean}: output is unchanged, token by token"
    if result.defects:
        title = f"Defect: output is changed ({number_of(result.defects, 'finding')})"
    elif near_ties:
        title = f"{clean}: output is unchanged, but for {number_of(near_ties, 'near-tie')} of rounding"
    ended = [("ended", audit.ended)] if audit.ended else []
    ended += [("not reached", "; ".join(audit.missing))] if audit.missing else []
    data = {
        "verdict": "defect" if result.defects else "clean",
        "complete": not audit.ended,
        "missing": audit.missing,
        "tokens": sum(method.tokens for method in result.methods),
        "mismatches": len(result.mismatches),
        "near_ties": near_ties,
        "defects": result.defects,
        "sampled_p_value": p_value,
        "problems": result.problems,
    }
    return Report(
        title,
        Provenance.here(command_line("audit", replace(options, api_key=None)), device, dtype),
        [*facts, ("run", run), *ended, ("rounding", place)],
        [_methods(result), *([_mismatches(result, tokenizer)] if result.mismatches else [])],
        data=asdict(result) | data | dict(facts),
        notes=[*(("defect", problem) for problem in result.problems), *_NOTES, *chance],
    )


def _methods(result: AuditResult) -> Table:
    rows = []
    for one in result.methods:
        near_ties = sum(not mismatch.defect for mismatch in one.mismatches)
        tau, half, worst = (f"{value:.2f}" if value else "–" for value in (one.tau, one.median, one.worst))
        rows.append((one.name, f"{one.tokens:,}", tau, str(near_ties), str(one.defects), half, worst))
    rows += [(f"p, {name}", *["–"] * 5, f"{value:.2g}") for name, value in result.p_values.items()]
    columns = ("method", "tokens", "τ", "near-ties", "defects", "off, half", "off, worst")
    return Table("", columns, rows, optional=("τ", "off, half"))


def _mismatches(result: AuditResult, tokenizer: Any) -> Table:
    """Return the table of mismatches, defects first."""
    named = [(method.name, one) for method in result.methods for one in method.mismatches]
    rows = []
    for name, one in sorted(named, key=lambda pair: not pair[1].defect)[:_SHOWN]:
        place = (
            name,
            str(one.prompt),
            str(one.position),
            *(_shown(token, tokenizer) for token in (one.expected, one.token)),
        )
        gap = "–" if one.gap is None else f"{one.gap:.3g}"
        rows.append((*place, gap, "defect" if one.defect else "near-tie"))
    left = len(named) - len(rows)
    columns = ("method", "prompt", "position", "expected", "found", "gap", "is")
    return Table("Mismatches", columns, rows, f"{left} more are in the JSON file" if left else "")


def _shown(token: Token, tokenizer: Any) -> str:
    if token == ENDED:
        return "the end"
    return repr(token if tokenizer is None else token_name(tokenizer, token))
