"""The audit from its options to the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from rich.console import Console

from clover import api, assets
from clover.audit import local, remote
from clover.audit.draws import Decode, against_sample, against_target, decode_all, draw_requests
from clover.audit.endpoint import Endpoint
from clover.audit.findings import ENDED, Findings
from clover.audit.noise import MARGIN
from clover.audit.options import AuditOptions
from clover.audit.repeat import repeat
from clover.audit.report import CLEAN, make_report
from clover.audit.trace import TracedTarget, trace
from clover.data.tasks import read_tasks, spread
from clover.drafting.prompt_lookup import LOOKUP
from clover.drafts import load_usable
from clover.engine import Engine
from clover.engine.text import token_name
from clover.errors import UserError, is_out_of_memory
from clover.files import check_output_file, write_text
from clover.integrations.generate import TransformersGenerate
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.session import choose_prompts
from clover.options import command_line
from clover.sampling import SamplingParams
from clover.target import TargetModel

_CHAIN = 4
_DRAWS = 1000  # per prompt
_LOW = (torch.bfloat16, torch.float16)
# Options of an audit in this process, and of one of a server.
_HERE = (
    "target", "draft", "trees", "against", "dtype", "device", "trust_remote_code", "compile", "no_float32",
)  # fmt: skip
_THERE = ("plain_server", "model")


def run_audit(options: AuditOptions, console: Console | None = None, errors: Console | None = None) -> bool:
    """Audit, print the report, and write what is asked for; returns whether the verdict is clean.

    Args:
        console, errors: for the report and for the progress; standard output and error when left out.

    Raises:
        UserError: an option, a file, a model or a server cannot be used; before anything is decoded where possible.
    """
    _check(options)
    with Progress(errors) as progress:
        progress.say(
            "loading target and draft" if options.server is None else "asking the server for its model"
        )
        report = _remote(options, progress) if options.server else _local(options, progress)
    if options.html is not None:
        write_text(options.html, report.html())  # before anything is printed, as in `publish`
    publish(report, console, options.json, lines=[f"wrote {options.html}"] if options.html else [])
    assert isinstance(report.data, dict)
    return report.data["verdict"] == CLEAN


def _check(options: AuditOptions) -> None:
    if options.server is None:
        if given := _given(options, _THERE):
            raise UserError(f"without --server, nothing is asked of one; leave out {given}")
    elif given := _given(options, _HERE):
        raise UserError(f"--server is audited as it runs; leave out {given}")
    for tree in options.trees:
        api.what_drafts(*_how(tree))
    if options.draft is not None and LOOKUP in options.trees and not _needs_draft(options):
        raise UserError("the tree lookup asks no draft; leave --draft out, or name another --tree")
    alone = set(options.trees) == {local.PLAIN} and set(options.batch_sizes) == {1}
    if alone and options.against != "transformers":
        raise UserError("nothing is compared: name a tree that drafts, or a --batch-size above 1")
    if options.prompts is not None:
        read_tasks([options.prompts])  # before a target is loaded
    check_outputs(options.json)
    if options.html is not None:
        check_output_file(options.html)


def _given(options: AuditOptions, names: Sequence[str]) -> str:
    """Those of the options that are not at their defaults, as they are written; empty if none."""
    default = AuditOptions()
    given = [name for name in names if getattr(options, name) != getattr(default, name)]
    return ", ".join("--" + name.removesuffix("s").replace("_", "-") for name in given)


def _how(tree: str) -> tuple[str, str | None]:
    """What `api.what_drafts` takes."""
    return ("draft", None) if tree == "draft" else ("auto", tree)


def _remote(options: AuditOptions, progress: Progress) -> Report:
    assert options.server is not None
    file = options.prompts or assets.HELD_OUT_PROMPTS
    tasks = spread(read_tasks([file]), options.max_prompts)
    texts = [task.text or "\n\n".join(message["content"] for message in task.messages) for task in tasks]
    same = options.plain_server in (None, options.server)
    drafting, plain = (
        Endpoint(url, options.api_key, options.model, {"speculation": on} if same else {})
        for url, on in ((options.server, True), (options.plain_server or options.server, False))
    )
    audit = remote.RemoteAudit(
        drafting,
        plain,
        texts,
        options.max_new_tokens,
        options.temperature,
        options.batch_sizes,
        coupled=options.plain_server is None,
    )
    progress.begin(audit.work)
    found = audit.run(_told(progress))
    facts = {
        "server": options.server,
        "plain_server": "the same, without speculation" if same else options.plain_server,
    }
    origin = _provenance(options, torch.device("cpu"), torch.float32)
    return make_report([found], origin, [*facts.items(), _run_fact(options, len(texts))], _shown)


def _local(options: AuditOptions, progress: Progress) -> Report:
    target = _load(options, options.dtype)
    draft, prompts = _draft(options, target), _prompts(options, target)
    engines = _engines(options, target, draft)
    length, size = options.max_new_tokens, max(options.batch_sizes)
    modes = local.make_modes(prompts, length, options.temperature, target.vocab_size, size)
    reference = TransformersGenerate(target) if options.against == "transformers" else None
    audit = local.LocalAudit(engines, modes, options.batch_sizes, reference)
    repeats = target.dtype in _LOW and not options.no_float32
    progress.begin(audit.work * (1.3 if repeats else 1.0))
    found, notes = [audit.run(_told(progress))], []
    if options.temperature:
        _draw(options, audit, found[0], progress)
    if repeats:
        try:
            found.append(repeat(audit, found[0], lambda: _exact(options, draft), _told(progress)))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            notes.append(("float32", "not repeated: there is no memory for the weights in float32"))
    facts = {
        "target": options.target or "embedded",
        "draft": _draft_name(options, draft),
        "against": options.against,
    }
    origin = _provenance(options, target.device, target.dtype)
    shown = [*facts.items(), _run_fact(options, len(prompts))]
    for part in found:
        part.parts = len(found)
    return make_report(found, origin, shown, lambda token: _token_name(target, token), notes)


def _load(options: AuditOptions, dtype: str | None) -> TracedTarget:
    name = options.target or assets.TARGET
    return TracedTarget(TargetModel.load(name, dtype, options.device, options.trust_remote_code))


def _exact(options: AuditOptions, draft: str | None) -> dict[str, Engine]:
    """The engines in float32."""
    return _engines(options, _load(options, "float32"), draft)


def _trees(options: AuditOptions) -> tuple[str, ...]:
    return options.trees or ("auto", "draft", LOOKUP)


def _needs_draft(options: AuditOptions) -> bool:
    return not {local.PLAIN, LOOKUP}.issuperset(_trees(options))


def _draft(options: AuditOptions, target: TargetModel) -> str | None:
    """Where the draft is; None if no tree needs one."""
    if not _needs_draft(options):
        return None
    place = assets.draft_place(options.draft, None if options.target is None else target)
    load_usable(place, target)  # an engine would decode plainly without a word about it in the report
    return place


def _draft_name(options: AuditOptions, place: str | None) -> str:
    if place is None:
        return LOOKUP if LOOKUP in _trees(options) else "none"
    return assets.draft_name(options.draft, place)


def _engines(options: AuditOptions, target: TracedTarget, place: str | None) -> dict[str, Engine]:
    def make(tree: str) -> Engine:
        return api.make_engine(target, place, api.what_drafts(*_how(tree)), options.compile)

    engines = {local.PLAIN: make(local.PLAIN)} | {name: make(name) for name in _trees(options)}
    draft = engines["draft"].draft if "draft" in engines else None
    if not options.trees and draft is not None:
        name = f"chain:{min(_CHAIN, draft.max_depth)}"
        engines[name] = make(name)
    return engines


def _prompts(options: AuditOptions, target: TargetModel) -> list[tuple[int, ...]]:
    files = () if options.prompts is None else (str(options.prompts),)
    chosen = options.max_new_tokens, options.max_prompts, assets.HELD_OUT_PROMPTS.stem, MARGIN
    return [one.tokens for one in choose_prompts(files, target, *chosen).prompts]


def _draw(options: AuditOptions, audit: local.LocalAudit, found: Findings, progress: Progress) -> None:
    """Test the distribution of ways whose sampled texts are not those of plain decoding."""
    drawn = [name for name in audit.engines if name.startswith("drawn:")]
    prompts = [request.prompt for request in audit.modes[0].requests]
    hot = SamplingParams(temperature=options.temperature)
    for name in drawn:
        params = [hot, SamplingParams(temperature=options.temperature, top_p=0.9, repetition_penalty=1.2)]
        requests = draw_requests(prompts, params, _DRAWS)
        texts = decode_all(_writer(audit.engines[name]), requests, f"draws, {name}", _told(progress))
        p_values, problems = against_target(audit.judge, requests, texts)
        found.p_values |= {f"{name}, {test}": value for test, value in p_values.items()}
        found.other += [f"{name}: {problem}" for problem in problems]
    if audit.reference is not None:
        requests = draw_requests(prompts, [hot], _DRAWS)
        first = next((name for name in audit.engines if name != local.PLAIN), local.PLAIN)
        writers = _writer(audit.engines[first]), lambda own: audit.reference(own).texts  # type: ignore[misc]
        samples = [
            decode_all(write, requests, f"draws, {name}", _told(progress))
            for write, name in zip(writers, (first, "transformers"), strict=True)
        ]
        found.p_values |= {f"transformers, {t}": value for t, value in against_sample(*samples).items()}


def _writer(engine: Engine) -> Decode:
    return lambda requests: trace(engine, requests, len(requests)).texts


def _told(progress: Progress) -> local.Told:
    return lambda count, doing: progress.reach(progress.done + count, doing)


def _provenance(options: AuditOptions, device: torch.device, dtype: torch.dtype) -> Provenance:
    return Provenance.here(command_line("audit", replace(options, api_key=None)), device, dtype)


def _run_fact(options: AuditOptions, prompts: int) -> tuple[str, str]:
    sizes = ", ".join(map(str, options.batch_sizes))
    sampled = f" and sampled at T = {options.temperature:g}" if options.temperature else ""
    text = f"{prompts} prompt{'s' if prompts > 1 else ''}, {options.max_new_tokens} new tokens each at most"
    return "run", f"{text}, batches of {sizes}, greedy{sampled}"


def _token_name(target: TargetModel, token: int | str) -> str:
    return _shown(token if isinstance(token, str) or token == ENDED else token_name(target.tokenizer, token))


def _shown(token: int | str) -> str:
    """A token's text as reports have it.

    >>> _shown(" a"), _shown(ENDED)
    ("' a'", 'the end')
    """
    return "the end" if token == ENDED else repr(token)
