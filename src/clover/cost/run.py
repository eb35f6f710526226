"""`clover cost` from its options to the report: the fact after a training, the forecast before it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from clover import assets
from clover.cost.breakeven import break_even
from clover.cost.calibrate import load_calibration
from clover.cost.extrapolate import Calibration, doublings
from clover.cost.forecast import forecast_speedup
from clover.cost.measuring import measure_pair
from clover.cost.options import CostOptions
from clover.cost.probe import HELD_OUT_SHARE, Probe, held_out_prompts, run_probe
from clover.cost.report import CostReport, ProbeReport, print_report
from clover.cost.training import TrainingCost, read_cost, read_data
from clover.data import Sample, read_samples
from clover.data.tasks import read_prompts
from clover.drafts import load_draft
from clover.errors import UserError
from clover.files import write_json
from clover.provenance import machine, revision, versions
from clover.target import TargetModel

_FEWEST_NEW_TOKENS = 16  # a prompt that leaves less room in the context is left out


def run_cost(
    options: CostOptions, console: Console | None = None, errors: Console | None = None
) -> CostReport:
    """Measure, print the figures, and write the JSON file.

    Args:
        options: what to measure.
        console: for the figures; standard output when left out.
        errors: for the progress; standard error when left out.

    Raises:
        KeyboardInterrupt: a signal ended the probe.
        UserError: an option, a file or a model cannot be used.
    """
    console, errors = console or Console(), errors or Console(stderr=True)
    options.check()
    report = _fact(options, errors) if options.draft else _forecast(options, errors)
    if options.json is not None:
        write_json(options.json, report.to_dict())
    print_report(console, report)
    if options.json is not None:
        console.print(f"wrote {options.json}", markup=False, highlight=False, soft_wrap=True)
    return report


def _fact(options: CostOptions, errors: Console) -> CostReport:
    folder = Path(str(options.draft))
    cost = read_cost(folder)
    target = _load_target(options)
    draft = load_draft(folder, target)
    with _measuring(errors) as progress:
        times = measure_pair(target, draft, _prompts(options, target, folder), options.measuring, progress)
    speedup = times.speedup
    plain, drafted = times.resampled()
    paying = break_even(
        cost.all_seconds, times.plain_seconds, speedup.value, plain, drafted, options.prices.ratio
    )
    return CostReport(
        cost,
        options.prices,
        options.measuring,
        times.plain_seconds,
        speedup,
        times.tau,
        paying,
        None,
        _provenance(options, target),
    )


def _forecast(options: CostOptions, errors: Console) -> CostReport:
    target = _load_target(options)
    samples = _read_data(target, options.data)
    prompts = _given_prompts(options, target) or _openings(options, target, samples, HELD_OUT_SHARE)
    with _measuring(errors) as progress:
        probe = run_probe(
            target,
            samples,
            options.training(),
            options.probe_minutes,
            prompts,
            options.measuring,
            errors,
            progress,
        )
    cost = _planned(options, probe.cost)
    known = load_calibration()
    told = forecast_speedup(probe.first, probe.second, cost.tokens, probe.times, known)
    value, plain_seconds = told.interval.value, probe.times.plain_seconds
    distance = doublings(probe.second.tokens, cost.tokens)
    return CostReport(
        cost,
        options.prices,
        options.measuring,
        plain_seconds,
        told.interval,
        probe.times.tau * value / probe.times.speedup.value,
        break_even(cost.all_seconds, plain_seconds, value, told.plain, told.drafted, options.prices.ratio),
        _describe(probe, distance, known),
        _provenance(options, target),
    )


def _describe(probe: Probe, distance: float, known: Calibration) -> ProbeReport:
    return ProbeReport(probe.first, probe.second, probe.times.speedup, probe.times.tau, distance, known)


def _planned(options: CostOptions, probe: TrainingCost) -> TrainingCost:
    """What the training will take if it goes on as fast as the second one of the probe."""
    if options.max_steps is not None:
        times = options.max_steps / probe.steps
    else:
        assert options.minutes is not None
        times = 60 * options.minutes / probe.seconds
    if times < 1:
        raise UserError(
            f"the probe alone trained {probe.steps} steps in {probe.seconds:.0f} s, which is more than the training "
            "that is planned; train at once, or give less --probe-minutes"
        )
    return replace(
        probe,
        steps=round(times * probe.steps),
        tokens=round(times * probe.tokens),
        seconds=times * probe.seconds,
        writing_seconds=60 * options.regenerate_minutes,
    )


def _load_target(options: CostOptions) -> TargetModel:
    target = TargetModel.load(
        options.target or str(assets.TARGET),
        dtype=options.dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    if target.tokenizer is None:
        raise UserError(f"the target {options.target} has no tokenizer, which texts need")
    return target


def _read_data(target: TargetModel, files: tuple[str, ...], stand_ins: bool = False) -> list[Sample]:
    assert target.tokenizer is not None
    return list(read_samples(files, target.tokenizer, target.eos_token_ids, stand_ins=stand_ins).samples)


def _prompts(options: CostOptions, target: TargetModel, folder: Path) -> list[tuple[int, ...]]:
    """The prompts that were given, or openings of the texts that the draft was not trained on."""
    if options.prompts:
        return _given_prompts(options, target)
    trained_on = read_data(folder)
    samples = _read_data(target, trained_on.data, stand_ins=True)
    return _openings(options, target, samples, trained_on.validation_share)


def _given_prompts(options: CostOptions, target: TargetModel) -> list[tuple[int, ...]]:
    if not options.prompts:
        return []
    assert target.tokenizer is not None
    found = read_prompts(options.prompts, target.tokenizer, options.measuring.prompts)
    return [one.tokens for one in found if len(one.tokens) <= _longest(target)]


def _openings(
    options: CostOptions, target: TargetModel, samples: list[Sample], share: float
) -> list[tuple[int, ...]]:
    return held_out_prompts(samples, options.measuring.prompts, _longest(target), share)


def _longest(target: TargetModel) -> int:
    return target.context_length - _FEWEST_NEW_TOKENS


@contextmanager
def _measuring(errors: Console) -> Iterator[Callable[[float], None]]:
    """Yield what shows the share that is measured; nothing is shown before its first call."""
    status = errors.status("")

    def show(share: float) -> None:
        status.update(f"plain decoding and the draft in turn: {share:.0%}")
        status.start()

    try:
        yield show
    finally:
        status.stop()


def _provenance(options: CostOptions, target: TargetModel) -> dict[str, Any]:
    return {
        "command": options.command,
        "date": datetime.date.today().isoformat(),
        "target": options.target or "embedded",
        "device": target.device.type,
        "dtype": str(target.dtype).removeprefix("torch."),
        "machine": machine(target.device),
        "versions": versions(),
        "revision": revision(),
    }
