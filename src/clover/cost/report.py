"""The figures of `clover cost`: as JSON, and as the few lines that are printed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clover.compare.progress import clock
from clover.cost.breakeven import Prices
from clover.cost.extrapolate import Calibration, Point
from clover.cost.intervals import LEVEL, Interval
from clover.cost.measuring import MeasuringOptions
from clover.cost.training import TrainingCost


@dataclass(frozen=True)
class ProbeReport:
    """What a forecast was made from.

    Args:
        first, second: the two trainings.
        speedup, tau: of the second draft.
        doublings: from the second training to the planned one.
        calibration: the constants.
    """

    first: Point
    second: Point
    speedup: Interval
    tau: float
    doublings: float
    calibration: Calibration


@dataclass(frozen=True)
class CostReport:
    """What a training takes and when it has paid for itself.

    Args:
        training: what it took, or, with a probe, will take.
        plain_seconds: per token of plain decoding.
        speedup: against plain decoding.
        tau: tokens per step.
        paying_tokens: generated tokens after which the training has paid for itself; infinite means never.
        probe: of a forecast; None for a fact.
        provenance: command, date, machine, versions, revision, target and draft.
    """

    training: TrainingCost
    prices: Prices
    measuring: MeasuringOptions
    plain_seconds: float
    speedup: Interval
    tau: float
    paying_tokens: Interval
    probe: ProbeReport | None
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values; never is null."""
        money = {
            "money": self.prices.money(self.training.all_seconds),
            "level": LEVEL,
            "kind": "forecast" if self.probe else "fact",
        }
        return _finite({**asdict(self), **money})

    @property
    def summary(self) -> str:
        """Speed-up and break-even in one sentence."""
        found = f"{describe_speedup(self.speedup)}"
        if self.probe is not None:
            found = f"forecast {found} after {clock(self.training.all_seconds)}"
        return f"{found}; {describe_paying(self.paying_tokens)}"


def describe_speedup(speedup: Interval) -> str:
    """A speed-up with its interval.

    >>> describe_speedup(Interval(1.9, 1.6, 2.2))
    '1.90x (1.60–2.20 with 90 %)'
    """
    return f"{speedup.value:.2f}x ({speedup.low:.2f}–{speedup.high:.2f} with {LEVEL:.0%})".replace("%", " %")


def describe_paying(tokens: Interval) -> str:
    """A number of tokens to break-even with its interval.

    >>> describe_paying(Interval(4e6, 3.14e6, 5e6))
    'paid for itself after 3.1 M–5 M tokens'
    >>> describe_paying(Interval(4e6, 3e6, math.inf))
    'paid for itself after 3 M tokens at the earliest, perhaps never'
    >>> describe_paying(Interval(math.inf, math.inf, math.inf))
    'does not pay: it is not faster than plain decoding'
    """
    if math.isinf(tokens.low):
        return "does not pay: it is not faster than plain decoding"
    if math.isinf(tokens.high):
        return f"paid for itself after {_count(tokens.low)} tokens at the earliest, perhaps never"
    return f"paid for itself after {_count(tokens.low)}–{_count(tokens.high)} tokens"


def print_report(console: Console, report: CostReport) -> None:
    """Print the figures and, last, the sentence."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _rows(report):
        grid.add_row(name, Text(text))
    console.print(grid)
    console.print(Text(report.summary, style="bold"), soft_wrap=True)


def _rows(report: CostReport) -> Iterator[tuple[str, str]]:
    cost, probe = report.training, report.probe
    if probe is not None:
        accuracy = " ".join(f"{share:.1%}" for share in probe.second.accuracy)
        yield (
            "probe",
            f"{_count(probe.first.tokens)}, then {_count(probe.second.tokens)} tokens; heads {accuracy}",
        )
        yield "its speed-up", f"{describe_speedup(probe.speedup)}, τ {probe.tau:.2f}"
        yield "distance", f"{probe.doublings:.1f} doublings of the tokens"
    written = f" and {clock(cost.writing_seconds)} of writing texts" if cost.writing_seconds else ""
    yield "training", f"{clock(cost.seconds)}{written}, {cost.steps:,} steps, {_count(cost.tokens)} tokens"
    money = report.prices.money(cost.all_seconds)
    if money is not None:
        yield "money", f"{money:.2f} at {report.prices.training:g} per hour"
    yield "peak memory", _bytes(cost.peak_memory)
    yield "disk", f"{_bytes(cost.draft)} the draft, {_bytes(cost.checkpoint)} the checkpoint meanwhile"
    use = report.measuring
    speed = use.batch_size and 1 / report.plain_seconds
    yield (
        "plain decoding",
        f"{speed:,.1f} tokens/s at batch size {use.batch_size}, temperature {use.temperature:g}",
    )
    yield "τ", f"{report.tau:.2f}"


def _count(number: float) -> str:
    """A number of tokens for people.

    >>> _count(950), _count(31_400), _count(3_140_000), _count(2.5e9)
    ('950', '31.4 k', '3.1 M', '2.5 G')
    """
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}".removesuffix(".0") + name
    return f"{number:.0f}"


def _bytes(number: int | None) -> str:
    return "not recorded" if number is None else f"{number / 2**20:,.1f} MiB"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
