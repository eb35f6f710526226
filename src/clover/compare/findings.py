"""From records to the numbers of tables and plots: names, means over prompts, tasks and seeds, differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any, TypeVar

from clover.compare.estimates import Pairs, Ratio, logarithms
from clover.compare.plan import Method
from clover.compare.results import Accuracy, Decoded, Measurement, Record, Trained
from clover.errors import UserError
from clover.evaluate.acceptance import depth_pairs, tau_pairs
from clover.evaluate.accuracy import TOP
from clover.report.words import system_name

TOP1, TOP5 = TOP.index(1), TOP.index(5)
T = TypeVar("T")
_SHOWN: dict[str, Callable[[Any], str]] = {
    "loss": lambda loss: f"{loss} loss",
    "budget": str,
    "learning_rate": lambda rate: f"rate {rate:g}",
    "tree": str,
}


@dataclass(frozen=True)
class Row:
    """One method at one temperature and batch size, over tasks, prompts and seeds.

    Args:
        method: with its seed left out.
        nodes: draft tokens per step at most; 0 for plain decoding.
        speed: tokens per second.
        speedup: against plain decoding, the mean of logarithms over batches of prompts.
        tau: tokens per step.
        depths: share accepted at each depth.
        milliseconds: per phase of a decoding step.
        identical, texts: sums; `exact` is False where texts need not be identical.
    """

    method: Method
    temperature: float
    batch_size: int
    nodes: int
    speed: Ratio
    speedup: Ratio
    tau: Ratio
    depths: list[Ratio]
    milliseconds: dict[str, float]
    identical: int
    texts: int
    exact: bool


@dataclass(frozen=True)
class HeadRow:
    """The accuracy of one draft, per head: first choice and five best, forced; first choice, chained."""

    method: Method
    top1: list[Ratio]
    top5: list[Ratio]
    chained: list[Ratio]


@dataclass(frozen=True)
class Difference:
    """An ablation: `method` less `against`, per head within its five best, and in τ where that was measured."""

    method: Method
    against: Method
    top5: list[Ratio]
    tau: Ratio | None


class Findings:
    """All records of a comparison, sorted by kind.

    Raises:
        UserError: there are none.
    """

    def __init__(self, records: Sequence[Record]):
        if not records:
            raise UserError("there are no results yet; run the suite first")
        self.records = records
        self.trained = self._of(Trained)
        self.measurements = self._of(Measurement)
        self.accuracies = self._of(Accuracy)
        measured = chain(*(m.methods for m in self.measurements))
        self._varying = _varying_fields([one.method for one in (*measured, *self.trained, *self.accuracies)])
        self.tasks = list(dict.fromkeys(m.task for m in self.measurements))
        self.temperatures = sorted({m.temperature for m in self.measurements})
        self.batch_sizes = sorted({m.batch_size for m in self.measurements})
        self.rows = self.rows_of(self.tasks)
        self.heads = self._head_rows()

    def label(self, method: Method) -> str:
        """The method's name, with as much as is needed to tell it from the others."""
        shown = [
            (name, getattr(method, name)) for name in _SHOWN if name in self._varying.get(method.system, ())
        ]
        return ", ".join(
            [system_name(method.system), *(_SHOWN[name](value) for name, value in shown if value is not None)]
        )

    def rows_of(self, tasks: Sequence[str]) -> list[Row]:
        """Of these tasks together, by temperature, batch size and method in the order of the suite."""
        groups: dict[tuple[float, int, Method], dict[tuple[str, int | None], tuple[Decoded, Decoded]]] = {}
        for m in self.measurements:
            for one in m.methods if m.task in tasks else ():
                key = (m.temperature, m.batch_size, replace(one.method, seed=None))
                groups.setdefault(key, {})[m.task, one.method.seed] = (one, m.methods[0])
        order = list(dict.fromkeys(method for _, _, method in groups))
        keys = sorted(groups, key=lambda key: (key[0], key[1], order.index(key[2])))
        return [_row(*key, groups[key]) for key in keys]

    def differences(self) -> list[Difference]:
        """What every draft with an `against` gained or lost, against the draft of equal budget most like it."""
        heads = {row.method: row for row in self.heads}
        taus = {
            row.method: row.tau for row in reversed(self.rows)
        }  # the lowest temperature and batch size win
        found: dict[Method, Difference] = {}
        for one in self.trained:
            own = replace(one.method, seed=None)
            others = [m for m in heads if (m.system, m.budget) == (one.against, own.budget)]
            if others and own in heads:
                alike = [(m.loss == own.loss) + (m.learning_rate == own.learning_rate) for m in others]
                against = others[alike.index(max(alike))]
                top5 = [a - b for a, b in zip(heads[own].top5, heads[against].top5, strict=False)]
                both = [m for m in reversed(list(taus)) if replace(m, tree=None) == own]
                shared = [(m, replace(against, tree=m.tree)) for m in both]
                tau = next((taus[m] - taus[other] for m, other in shared if other in taus), None)
                found[own] = Difference(own, against, top5, tau)
        return list(found.values())

    def _of(self, kind: type[T]) -> list[T]:
        return [record.result for record in self.records if isinstance(record.result, kind)]

    def _head_rows(self) -> list[HeadRow]:
        groups: dict[Method, list[Accuracy]] = {}
        for one in self.accuracies:
            groups.setdefault(replace(one.method, seed=None), []).append(one)

        def ratios(found: Sequence[Accuracy], counts: str, rank: int) -> list[Ratio]:
            heads = [one.heads for one in found]
            pairs = [
                [one.pairs(getattr(one, counts), head, rank) for one in heads]
                for head in range(len(heads[0].totals))
            ]
            return [ratio for ratio in map(Ratio.of, pairs) if ratio is not None]

        kinds = (("forced", TOP1), ("forced", TOP5), ("chained", TOP1))
        return [
            HeadRow(method, *(ratios(found, *kind) for kind in kinds)) for method, found in groups.items()
        ]


def _varying_fields(methods: Sequence[Method]) -> dict[str, set[str]]:
    """Per system the fields in which its methods differ; trees count for all systems if any two differ."""

    def differ(name: str, some: Iterable[Method]) -> bool:
        return len({getattr(method, name) for method in some} - {None}) > 1

    systems = {method.system: [m for m in methods if m.system == method.system] for method in methods}
    return {
        system: {name for name in _SHOWN if differ(name, methods if name == "tree" else own)}
        for system, own in systems.items()
    }


def _row(
    temperature: float,
    batch_size: int,
    method: Method,
    found: dict[tuple[str, int | None], tuple[Decoded, Decoded]],
) -> Row:
    """Of one method by task and seed, each with plain decoding of the same cell."""
    runs = [own for own, _ in found.values()]

    def ratio(pairs: Callable[[Decoded, Decoded], Pairs]) -> Ratio:
        seeds: dict[int | None, list[tuple[float, float]]] = {}
        for (_, seed), cell in found.items():
            seeds.setdefault(seed, []).extend(pairs(*cell))
        return Ratio.of(list(seeds.values())) or Ratio.of([[(0.0, 1.0)]])  # type: ignore[return-value]

    deepest = max(len(one.attempts) for own in runs for one in own.acceptances)
    return Row(
        method=method,
        temperature=temperature,
        batch_size=batch_size,
        nodes=runs[0].nodes,
        speed=ratio(lambda own, _: list(zip(own.tokens, own.batch_seconds, strict=True))),
        speedup=ratio(_speedups),
        tau=ratio(lambda own, _: tau_pairs(own.acceptances)),
        depths=[ratio(lambda own, _, d=depth: depth_pairs(own.acceptances, d)) for depth in range(deepest)],
        milliseconds={
            phase: fmean(own.step_milliseconds[phase] for own in runs) for phase in runs[0].step_milliseconds
        },
        identical=sum(own.identical for own in runs),
        texts=sum(len(own.acceptances) for own in runs),
        exact=all(own.exact for own in runs),
    )


def _speedups(own: Decoded, plain: Decoded) -> Pairs:
    """The logarithm of each batch's speed-up against plain decoding, of the median rounds."""
    speeds, plains = (map(lambda n, s: n / s, one.tokens, one.batch_seconds) for one in (own, plain))
    return logarithms([fast / slow for fast, slow in zip(speeds, plains, strict=True)])
