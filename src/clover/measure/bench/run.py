"""The benchmark from its options to the report."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from rich.console import Console
from transformers import AutoModelForCausalLM

from clover import assets
from clover.engine import Request
from clover.errors import UserError, one_line
from clover.measure.bench.ceilings import Limits, measure_limits
from clover.measure.bench.methods import make_method, method_names
from clover.measure.bench.metrics import Metrics, metrics_of
from clover.measure.bench.report import make_report
from clover.measure.evaluate.run import choose_prompts
from clover.measure.interleaved import interleave, make_batches
from clover.measure.options import BenchOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.options import command_line
from clover.target import TargetModel
from clover.target.loading import FAILURES


def run_bench(options: BenchOptions, console: Console | None = None, errors: Console | None = None) -> Report:
    """Measure, print the tables, and write the JSON lines and the picture.

    UserError if an option, a file or a model cannot be used; before anything is measured where possible.
    """
    check_outputs(options.json, options.picture)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        bench = Bench(options, method_names(options.trees, not options.no_reference, bool(options.assistant)))
        progress.say("ceilings of the device")
        limits = measure_limits(bench.target)
        report = _report(bench, _measure(bench, limits, progress), limits)
    publish(report, console, options.json, options.picture)
    return report


class Bench:
    """The target, the methods named and the prompts (token ids) that `options` ask for, loaded.

    UserError if a model, a tree or the prompts cannot be used.
    """

    def __init__(self, options: BenchOptions, names: Sequence[str]):
        self.options = options
        self.target = TargetModel.load(options.target or assets.TARGET, **options.loading)
        given = None if options.target is None else self.target
        assistant, draft = None, assets.draft_place(options.draft, given)
        if options.assistant is not None:
            assistant = load_assistant(options.assistant, self.target, options.trust_remote_code)
        self.draft_name = assets.draft_name(options.draft, draft)
        self.methods = [make_method(name, self.target, draft, assistant, options.compile) for name in names]
        files = () if options.prompts is None else (str(options.prompts),)
        chosen = options.max_new_tokens, options.max_prompts, assets.HELD_OUT_PROMPTS.stem
        self.prompts = [one.tokens for one in choose_prompts(files, self.target, *chosen).prompts]

    def batches(self, size: int, temperature: float) -> list[list[Request]]:
        """All prompts in batches."""
        tokens, room = self.options.max_new_tokens, self.target.longest_run
        return make_batches(self.prompts, size, temperature, tokens, room)


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


def _measure(bench: Bench, limits: Limits, progress: Progress) -> list[Metrics]:
    """All methods at every batch size and temperature."""
    pairs = list(product(bench.options.batch_sizes, bench.options.temperatures))
    progress.begin(len(pairs))
    found = []
    for size, temperature in pairs:
        batches = bench.batches(size, temperature)
        told = progress.part(1, f"batch {size}, temperature {temperature:g}")
        able = [one for one in bench.methods if one.refusal(size) is None]
        runs = interleave({one.name: one.decode for one in able}, batches, bench.options.rounds, told)
        found += metrics_of(able, runs, batches[0], limits, len(bench.prompts))
    return found


def _report(bench: Bench, found: list[Metrics], limits: Limits) -> Report:
    options = bench.options
    models = {"target": options.target or "embedded", "draft": bench.draft_name}
    counts = {"prompts": len(bench.prompts), "max_new_tokens": options.max_new_tokens}
    refused = [
        (one.label, f"batch {size}: {reason}")
        for size, one in product(options.batch_sizes, bench.methods)
        if (reason := one.refusal(size)) is not None
    ]
    return make_report(
        "Speed-up against plain decoding",
        Provenance.here(command_line("bench", options), bench.target.device, bench.target.dtype),
        [*models.items(), limits.fact],
        f"{len(bench.prompts)} prompts, {options.max_new_tokens} new tokens each at most, {options.rounds} rounds "
        "in turn after a warm-up",
        found,
        [asdict(one) | models | counts | {"limits": asdict(limits)} for one in found],
        refused,
    )
