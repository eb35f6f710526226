"""`clover bench`: how fast plain decoding, the draft, and transformers' own ways to decode are on this machine."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from rich.console import Console
from transformers import AutoModelForCausalLM

from clover.errors import UserError, one_line
from clover.integrations.generate import TransformersGenerate
from clover.measure.ceilings import Limits, measure_limits
from clover.measure.options import BenchOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.words import number_of
from clover.measure.session import AUTO, HELD_OUT, LOOKUP, OWN, PLAIN, Session
from clover.measure.speed import Method, Metrics, measure_runs
from clover.measure.speed_report import make_report
from clover.measure.systems import system_name
from clover.measure.timing import acceptance_of, interleave
from clover.metrics import Acceptance
from clover.target import TargetModel
from clover.target.loading import FAILURES

TRANSFORMERS, TRANSFORMERS_LOOKUP, ASSISTED = "transformers", "prompt lookup", "assisted"
_LABELS = {TRANSFORMERS_LOOKUP: "transformers' prompt lookup", ASSISTED: "transformers' assisted"}
_LOOKUP_TOKENS = 10  # the number in transformers' own documentation


def run_bench(options: BenchOptions, console: Console | None = None, errors: Console | None = None) -> Report:
    """Measure, print the tables, and write the JSON lines and the picture.

    UserError if an option, a file or a model cannot be used; before anything is measured where possible.
    """
    check_outputs(options.json, options.picture)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        lengths = options.max_new_tokens, options.max_prompts
        session = Session.load(options, (options.draft,), options.prompts, *lengths, HELD_OUT)
        assistant = None
        if options.assistant is not None:
            assistant = load_assistant(options.assistant, session.target, options.trust_remote_code)
        names = method_names(options.trees, not options.no_reference, assistant is not None)
        methods = [make_method(name, session, assistant, options.compile) for name in names]
        progress.say("ceilings of the device")
        limits = measure_limits(session.target)
        found, auto = _measure(options, session, methods, limits, progress)
    report = _report(options, session, methods, found, limits, auto)
    publish(report, console, options.json, options.picture)
    return report


def method_names(trees: Sequence[str], reference: bool, assisted: bool) -> list[str]:
    """Return the names of all methods, plain decoding first.

    >>> method_names(["chain:3"], reference=True, assisted=False)
    ['plain', 'auto', 'own', 'lookup', 'chain:3', 'transformers', 'prompt lookup']
    """
    theirs = [TRANSFORMERS, TRANSFORMERS_LOOKUP] if reference else []
    names = [PLAIN, AUTO, OWN, LOOKUP, *trees, *theirs, *([ASSISTED] if assisted else [])]
    return list(dict.fromkeys(names))


def make_method(name: str, session: Session, assistant: Any = None, compile: bool | str = False) -> Method:
    """Return one method of the benchmark, by one of this module's names or a tree's.

    `assistant` is a model of transformers, whose methods run without `compile`. UserError if the tree is unknown or
    deeper than the draft.
    """
    if name in (TRANSFORMERS, TRANSFORMERS_LOOKUP, ASSISTED):
        lookup = _LOOKUP_TOKENS if name == TRANSFORMERS_LOOKUP else None
        decode = TransformersGenerate(session.target, lookup, assistant if name == ASSISTED else None)
        return Method(name, _LABELS.get(name, system_name(name)), decode)
    return Method.of_engine(name, session.engine(name, compile=compile))


def load_assistant(name: str, target: TargetModel, trust_remote_code: bool) -> Any:
    """Load a small model for assisted generation; UserError if it cannot be loaded or has another vocabulary."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=target.dtype, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    except FAILURES as error:
        raise UserError(f"the assistant {name} cannot be loaded: {one_line(error)}") from error
    if model.config.vocab_size != target.config.vocab_size:
        raise UserError(
            f"the assistant {name} has a vocabulary of {model.config.vocab_size}, the target one of "
            f"{target.config.vocab_size}; transformers needs the same"
        )
    return model.to(target.device).eval()


def _measure(
    options: BenchOptions, session: Session, methods: Sequence[Method], limits: Limits, progress: Progress
) -> tuple[list[Metrics], Acceptance]:
    """Return the metrics of all methods at every batch size and temperature, and the acceptance of auto."""
    pairs = list(product(options.batch_sizes, options.temperatures))
    progress.begin(len(pairs))
    found, auto = list[Metrics](), Acceptance()
    for size, temperature in pairs:
        batches = session.batches(size, temperature)
        reached = progress.part(1, f"batch {size}, temperature {temperature:g}")
        able = [one for one in methods if one.refusal(size) is None]
        runs = interleave({one.name: one.decode for one in able}, batches, options.rounds, reached)
        auto += acceptance_of([run for part in runs[AUTO] for run in part])
        found += measure_runs(able, runs, batches[0], limits, len(session.prompts))
    return found, auto


def _report(
    options: BenchOptions,
    session: Session,
    methods: Sequence[Method],
    found: Sequence[Metrics],
    limits: Limits,
    auto: Acceptance,
) -> Report:
    models = {"target": session.target_name, "draft": session.draft.name}
    counts = {"prompts": len(session.prompts), "max_new_tokens": options.max_new_tokens}
    notes = [
        (one.label, f"batch {size}: {reason}")
        for size, one in product(options.batch_sizes, methods)
        if (reason := one.refusal(size)) is not None
    ]
    return make_report(
        "Speed-up against plain decoding",
        session.provenance("bench", options),
        [*models.items(), limits.fact],
        f"{number_of(len(session.prompts), 'prompt')}, {options.max_new_tokens} new tokens each at most, "
        f"{number_of(options.rounds, 'round')} in turn after a warm-up",
        found,
        [asdict(one) | models | counts | {"limits": asdict(limits)} for one in found],
        [*notes, _auto_note(found, auto)],
    )


def _auto_note(found: Sequence[Metrics], auto: Acceptance) -> tuple[str, str]:
    """Return how often auto drafted, and what to do if that was seldom although a tree was faster."""
    drafted = auto.attempts[0] if auto.attempts else 0
    fastest = max((one for one in found if one.ideal_share is not None), key=lambda one: one.speedup)
    advice = "; run clover tune" if fastest.method != AUTO and drafted < auto.steps / 2 else ""
    return AUTO, f"drafted in {drafted:,} of {number_of(auto.steps, 'step')}{advice}"
