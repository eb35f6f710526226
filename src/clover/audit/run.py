"""The audit from its options to the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from rich.console import Console

from clover import assets
from clover.audit import local, remote
from clover.audit.endpoint import Endpoint
from clover.audit.options import AuditOptions
from clover.audit.report import CLEAN, make_report
from clover.audit.results import ENDED
from clover.audit.rounding import MARGIN
from clover.audit.trace import TracedTarget
from clover.data.tasks import read_tasks, spread
from clover.drafting import parse_tree
from clover.engine import Engine
from clover.engine.text import token_name
from clover.errors import UserError
from clover.files import check_output_file, write_text
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.session import HELD_OUT, Session
from clover.options import command_line
from clover.sampling import SamplingParams
from clover.target import TargetModel

_CHAIN = 4
_DRAWS = 1000  # per prompt
# Options of an audit in this process, and of one of a server.
_LOCAL = ("target", "draft", "trees", "dtype", "device", "threads", "trust_remote_code", "compile")
_REMOTE = ("plain_server", "model")


def audit(options: AuditOptions, console: Console | None = None, errors: Console | None = None) -> bool:
    """Audit, print the report, and write the files that the options name; return whether the verdict is clean.

    Args:
        console, errors: for the report and for the progress; standard output and error when left out.

    Raises:
        UserError: an option, a file, a model or a server cannot be used; before anything is decoded where possible.
    """
    _check(options)
    with Progress(errors) as progress:
        report = _audit_server(options, progress) if options.server else _audit_target(options, progress)
    if options.html is not None:
        write_text(options.html, report.html())  # before anything is printed, as in `publish`
    publish(report, console, options.json, lines=[f"wrote {options.html}"] if options.html else [])
    assert isinstance(report.data, dict)
    return report.data["verdict"] == CLEAN


def _check(options: AuditOptions) -> None:
    if options.server is None:
        if named := _named(options, _REMOTE):
            raise UserError(f"without --server, no server is audited; leave out {named}")
    elif named := _named(options, _LOCAL):
        raise UserError(f"--server is audited as it runs; leave out {named}")
    for tree in options.trees:
        parse_tree(tree)
    if options.draft is not None and not _needs_draft(options):
        raise UserError("these trees need no draft; leave --draft out, or name another --tree")
    if set(options.trees) == {local.PLAIN} and set(options.batch_sizes) == {1}:
        raise UserError("nothing is compared: name a tree that drafts, or a --batch-size above 1")
    if options.prompts is not None:
        read_tasks([options.prompts])  # before a target is loaded
    check_outputs(options.json)
    if options.html is not None:
        check_output_file(options.html)


def _named(options: AuditOptions, names: Sequence[str]) -> str:
    """Return those of the options that are not at their defaults, as they are typed; empty if none."""
    default = AuditOptions()
    named = [name for name in names if getattr(options, name) != getattr(default, name)]
    return ", ".join("--" + name.removesuffix("s").replace("_", "-") for name in named)


def _audit_server(options: AuditOptions, progress: Progress) -> Report:
    progress.say("asking the server for its model")
    assert options.server is not None
    tasks = spread(read_tasks([options.prompts or assets.HELD_OUT_PROMPTS]), options.max_prompts)
    texts = [task.text or "\n\n".join(message["content"] for message in task.messages) for task in tasks]
    plain = options.plain_server or options.server
    same = plain == options.server
    drafting_side, plain_side = (
        Endpoint(url, options.api_key, options.model, {"speculation": on} if same else {})
        for url, on in ((options.server, True), (plain, False))
    )
    audit = remote.RemoteAudit(
        drafting_side,
        plain_side,
        texts,
        options.max_new_tokens,
        options.temperature,
        options.batch_sizes,
        coupled=options.plain_server is None,
        report=_reporting(progress),
    )
    progress.begin(audit.work)
    result = audit.run()
    facts = [("server", options.server), ("plain_server", "the same, without speculation" if same else plain)]
    origin = _provenance(options, torch.device("cpu"), torch.float32)
    return make_report(result, origin, [*facts, _run_fact(options, len(texts))], _shown)


def _audit_target(options: AuditOptions, progress: Progress) -> Report:
    progress.say("loading target and draft")
    session = _load(options)
    target, prompts = session.target, [one.tokens for one in session.prompts]
    length, size, temperature = options.max_new_tokens, max(options.batch_sizes), options.temperature
    modes = local.make_modes(prompts, length, temperature, target.vocab_size, size)
    audit = local.LocalAudit(_engines(options, session), modes, options.batch_sizes)
    progress.begin(audit.work)
    result = audit.run(_reporting(progress))
    hot = SamplingParams(temperature=temperature or 1.0)
    for tree, engine in audit.engines.items():
        if temperature and not engine.tree.exact:
            audit.test_draws(
                tree, [hot, replace(hot, top_p=0.9, repetition_penalty=1.2)], _DRAWS, _reporting(progress)
            )
    draft = session.draft.name if session.drafts else "none"
    facts = [("target", session.target_name), ("draft", draft)]
    origin = _provenance(options, target.device, target.dtype)
    facts.append(_run_fact(options, len(prompts)))
    return make_report(result, origin, facts, lambda token: _token_text(target, token))


def _trees(options: AuditOptions) -> tuple[str, ...]:
    return options.trees or ("auto", "own", "lookup")


def _needs_draft(options: AuditOptions) -> bool:
    return any(parse_tree(tree).needs_draft for tree in _trees(options))


def _load(options: AuditOptions) -> Session:
    drafts = (options.draft,) if _needs_draft(options) else ()
    limits = options.max_new_tokens, options.max_prompts
    session = Session.load(options, drafts, options.prompts, *limits, group=HELD_OUT, spare=MARGIN)
    target = TracedTarget(session.target)
    for draft in session.drafts:
        draft.model.bind(target)
    return replace(session, target=target)


def _engines(options: AuditOptions, session: Session) -> dict[str, Engine]:
    trees = [local.PLAIN, *_trees(options)]
    if not options.trees:
        trees.append(f"chain:{min(_CHAIN, session.draft.model.max_depth)}")
    return {tree: session.engine(tree, compile=options.compile) for tree in trees}


def _reporting(progress: Progress) -> Callable[[int, str], None]:
    return lambda count, doing: progress.reach(progress.done + count, doing)


def _provenance(options: AuditOptions, device: torch.device, dtype: torch.dtype) -> Provenance:
    return Provenance.here(command_line("audit", replace(options, api_key=None)), device, dtype)


def _run_fact(options: AuditOptions, prompts: int) -> tuple[str, str]:
    sizes = ", ".join(map(str, options.batch_sizes))
    sampled = f" and sampled at T = {options.temperature:g}" if options.temperature else ""
    text = f"{prompts} prompt{'s' if prompts > 1 else ''}, {options.max_new_tokens} new tokens each at most"
    return "run", f"{text}, batches of {sizes}, greedy{sampled}"


def _token_text(target: TargetModel, token: int | str) -> str:
    return _shown(token if isinstance(token, str) or token == ENDED else token_name(target.tokenizer, token))


def _shown(token: int | str) -> str:
    """Return a token's text as reports have it.

    >>> _shown(" a"), _shown(ENDED)
    ("' a'", 'the end')
    """
    return "the end" if token == ENDED else repr(token)
