"""Runs and reports made by hand."""

from __future__ import annotations

import torch

from clover.bench.ceilings import Ceilings, StepWork
from clover.bench.context import Curve
from clover.bench.figures import Figures, Measured, StepTimes, figures
from clover.bench.options import BenchOptions
from clover.bench.report import ContextReport, Refusal, Report, where_it_ran
from clover.engine import PhaseClock
from clover.interleaved import Run
from clover.metrics import Acceptance

WORK = StepWork(weight_bytes=4_000_000, flops_per_token=2_000_000)
CEILINGS = Ceilings(bytes_per_second=4e9, read_bytes=4_000_000, flops_per_second=1e10)
PLAIN_STEP = StepTimes(0.0, 0.008, 0.001, 0.0, 0.001)
DRAFT_STEP = StepTimes(0.003, 0.012, 0.001, 0.002, 0.002)


def run(seconds: float, texts: tuple[tuple[int, ...], ...], histogram: list[int], **phases: float) -> Run:
    clock = PhaseClock()
    clock.seconds.update(phases)
    clock.steps = sum(histogram)
    return Run(texts, seconds, Acceptance(histogram=histogram, attempts=[], drafted=0), clock)


def plain() -> Measured:
    rounds = [[run(seconds, ((1, 2, 3), (4, 5, 6)), [6])] for seconds in (1.0, 2.0, 4.0)]
    return Measured("plain", rounds, PLAIN_STEP, 1, drafts=False, comparable=True)


def drafted(name: str = "own tree", **changes: object) -> Measured:
    rounds = [[run(seconds, ((1, 2, 3), (4, 5, 7)), [0, 0, 2])] for seconds in (0.5, 0.5, 2.0)]
    values = {"steps": DRAFT_STEP, "nodes": 8, "drafts": True, "comparable": True} | changes
    return Measured(name, rounds, **values)  # type: ignore[arg-type]


def lines() -> list[Figures]:
    found = []
    for size in (1, 4):
        for temperature in (0.0, 1.0):
            methods = [
                plain(),
                drafted(),
                drafted("chain:3"),
                drafted("transformers", steps=None, drafts=False),
            ]
            found += [figures(m, methods[0], size, temperature, WORK, CEILINGS, 3 * 2**20) for m in methods]
    return found


def report() -> Report:
    origin = where_it_ran(BenchOptions(target="t"), torch.device("cpu"), "float32", "t", "d")
    refusals = [Refusal("prompt lookup", 4, "not able: so it is")]
    return Report(origin, WORK, CEILINGS, 8, 64, lines(), refusals)


def context_report() -> ContextReport:
    origin = where_it_ran(
        BenchOptions(context=True), torch.device("cpu"), "float32", "a small model", "untrained"
    )
    curves = (
        Curve.fit("plain", (1000, 2000, 4000), (0.003, 0.004, 0.006)),
        Curve.fit("own tree", (1000, 2000, 4000), (0.005, 0.007, 0.012)),
    )
    return ContextReport(origin, curves)
