"""From records to the figures of tables and plots: names, averages over tasks and seeds, differences of ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean, geometric_mean

from clover.compare.accuracy import Accuracy
from clover.compare.measuring import Measured, Measurement
from clover.compare.plan import PLAIN, Method
from clover.compare.results import Provenance, Record, Text
from clover.compare.training import Trained
from clover.errors import UserError

_NAMES = {
    PLAIN: "plain decoding",
    "clover1": "Clover-1",
    "clover2": "Clover-2",
    "recall": "Clover-Recall",
    "medusa": "Medusa",
    "eagle": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "hydra": "Hydra",
    "lookup": "prompt lookup",
}


@dataclass(frozen=True)
class Row:
    """One method at one temperature and batch size, averaged over tasks and seeds.

    Args:
        method: with its seed left out.
        tasks: that were averaged over.
        speed: tokens per second, arithmetic mean.
        speedup, low, high: geometric means of the median, the lowest and the highest round.
        tau, depths, milliseconds: arithmetic means, the latter per depth and per phase of a step.
        identical, texts: sums; `exact` is False where texts need not be identical.
    """

    method: Method
    temperature: float
    batch_size: int
    tasks: tuple[str, ...]
    nodes: int
    speed: float
    speedup: float
    low: float
    high: float
    tau: float
    depths: tuple[float, ...]
    milliseconds: dict[str, float]
    identical: int
    texts: int
    exact: bool


@dataclass(frozen=True)
class HeadRow:
    """The accuracy of one draft, averaged over tasks and seeds, weighted by positions; see `Accuracy`."""

    method: Method
    top: tuple[int, ...]
    forced: tuple[tuple[float, ...], ...]
    chained: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Difference:
    """An ablation: `method` less what it is compared with.

    Args:
        against: the method it is compared with.
        top5: per head, difference of the share that the head has within its five best, -1 … 1.
        tau: difference of τ; None where it was not measured.
    """

    method: Method
    against: Method
    top5: tuple[float, ...]
    tau: float | None


class Findings:
    """All records of a comparison, sorted by kind.

    Raises:
        UserError: there are none.
    """

    def __init__(self, records: Sequence[Record]):
        if not records:
            raise UserError("there are no results yet; run the suite first")
        self.provenances: list[Provenance] = [record.provenance for record in records]
        results = [record.result for record in records]
        self.texts = [r for r in results if isinstance(r, Text)]
        self.trained = [r for r in results if isinstance(r, Trained)]
        self.measurements = [r for r in results if isinstance(r, Measurement)]
        self.accuracies = [r for r in results if isinstance(r, Accuracy)]
        self.seconds = sum(record.seconds for record in records)
        self._varying = _varying_fields(self._methods())

    @property
    def provenance(self) -> Provenance:
        """That of the last record."""
        return self.provenances[-1]

    @property
    def tasks(self) -> list[str]:
        """In the order they were measured."""
        return _unique(m.task for m in self.measurements)

    @property
    def temperatures(self) -> list[float]:
        """From the lowest up."""
        return sorted({m.temperature for m in self.measurements})

    @property
    def batch_sizes(self) -> list[int]:
        """From the smallest up."""
        return sorted({m.batch_size for m in self.measurements})

    def label(self, method: Method) -> str:
        """The method's name, with as much as is needed to tell it from the others."""
        parts = [_NAMES.get(method.system, method.system)]
        for name, show in _SHOWN.items():
            value = getattr(method, name)
            if value is not None and name in self._varying.get(method.system, ()):
                parts.append(show(value))
        return ", ".join(parts)

    def rows(self, task: str | None = None) -> list[Row]:
        """Averages of one task, or of all, by temperature, batch size and method in the order of the suite."""
        groups: dict[tuple[float, int, Method], list[tuple[str, Measured]]] = {}
        for m in self.measurements:
            if task in (None, m.task):
                for one in m.methods:
                    key = (m.temperature, m.batch_size, replace(one.method, seed=None))
                    groups.setdefault(key, []).append((m.task, one))
        order = _unique(method for _, _, method in groups)
        keys = sorted(groups, key=lambda key: (key[0], key[1], order.index(key[2])))
        return [_average(key, groups[key]) for key in keys]

    def head_rows(self) -> list[HeadRow]:
        """Averages over tasks and seeds."""
        groups: dict[Method, list[Accuracy]] = {}
        for one in self.accuracies:
            groups.setdefault(replace(one.method, seed=None), []).append(one)
        return [
            HeadRow(
                method,
                found[0].top,
                _weighted(found, lambda a: a.forced),
                _weighted(found, lambda a: a.chained),
            )
            for method, found in groups.items()
        ]

    def differences(self) -> list[Difference]:
        """What every draft with an `against` gained or lost, against the draft of equal budget most like it."""
        heads = {row.method: row for row in self.head_rows()}
        taus = {
            row.method: row.tau for row in reversed(self.rows())
        }  # the lowest temperature and batch size win
        found = []
        for one in self.trained:
            method = replace(one.method, seed=None)
            others = [m for m in heads if (m.system, m.budget) == (one.against, method.budget)]
            if others and method in heads and method not in [difference.method for difference in found]:
                against = max(others, key=lambda m: _alike(m, method))
                top5 = _minus(_top5(heads[method]), _top5(heads[against]))
                found.append(Difference(method, against, top5, _tau_difference(taus, method, against)))
        return found

    def _methods(self) -> list[Method]:
        measured = [one.method for m in self.measurements for one in m.methods]
        return [*measured, *(t.method for t in self.trained), *(a.method for a in self.accuracies)]


_SHOWN: dict[str, Callable[..., str]] = {
    "loss": lambda loss: f"{loss} loss",
    "budget": str,
    "learning_rate": lambda rate: f"rate {rate:g}",
    "seed": lambda seed: f"seed {seed}",
    "tree": str,
}


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.4567)
    '45.7'
    """
    return f"{100 * share:.1f}"


def _varying_fields(methods: Sequence[Method]) -> dict[str, set[str]]:
    """Per system the fields in which its methods differ; trees count for all systems if any two differ."""
    varying: dict[str, set[str]] = {}
    for system in {method.system for method in methods}:
        own = [method for method in methods if method.system == system]
        varying[system] = {name for name in _SHOWN if _differ(name, methods if name == "tree" else own)}
    return varying


def _differ(name: str, methods: Iterable[Method]) -> bool:
    return len({getattr(method, name) for method in methods} - {None}) > 1


def _average(key: tuple[float, int, Method], found: Sequence[tuple[str, Measured]]) -> Row:
    temperature, batch_size, method = key
    parts = [one for _, one in found]
    return Row(
        method=method,
        temperature=temperature,
        batch_size=batch_size,
        tasks=tuple(_unique(task for task, _ in found)),
        nodes=parts[0].nodes,
        speed=fmean(one.speed for one in parts),
        speedup=geometric_mean(one.speedup for one in parts),
        low=geometric_mean(min(one.speedups) for one in parts),
        high=geometric_mean(max(one.speedups) for one in parts),
        tau=fmean(one.tau for one in parts),
        depths=_mean_columns([one.acceptance_per_depth for one in parts]),
        milliseconds={
            phase: fmean(one.step_milliseconds[phase] for one in parts)
            for phase in parts[0].step_milliseconds
        },
        identical=sum(one.identical for one in parts),
        texts=sum(one.texts for one in parts),
        exact=all(one.exact for one in parts),
    )


def _mean_columns(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Means of columns; shorter rows have nothing to say about the last ones."""
    columns = zip_longest(*rows)
    return tuple(fmean(value for value in column if value is not None) for column in columns)


def _weighted(
    found: Sequence[Accuracy], grid: Callable[[Accuracy], tuple[tuple[float, ...], ...]]
) -> tuple[tuple[float, ...], ...]:
    heads = min(len(one.positions) for one in found)
    sizes = range(len(found[0].top))
    totals = [sum(one.positions[head] for one in found) for head in range(heads)]
    return tuple(
        tuple(
            sum(grid(one)[head][size] * one.positions[head] for one in found) / max(totals[head], 1)
            for size in sizes
        )
        for head in range(heads)
    )


def _top5(row: HeadRow) -> tuple[float, ...]:
    place = row.top.index(5) if 5 in row.top else len(row.top) - 1
    return tuple(head[place] for head in row.forced)


def _minus(left: Sequence[float], right: Sequence[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(left, right, strict=False))


def _alike(left: Method, right: Method) -> int:
    return sum(getattr(left, name) == getattr(right, name) for name in ("loss", "learning_rate"))


def _tau_difference(taus: dict[Method, float], method: Method, against: Method) -> float | None:
    """With the first tree that both were measured with."""
    for measured, tau in reversed(list(taus.items())):
        other = taus.get(replace(against, tree=measured.tree))
        if replace(measured, tree=None) == method and other is not None:
            return tau - other
    return None


def _unique(values: Iterable) -> list:
    return list(dict.fromkeys(values))
