"""From records to the numbers of tables and plots: names, means over prompts, tasks and seeds, differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import log
from statistics import fmean
from typing import Any

from clover.compare.plan import Method
from clover.compare.results import Decoded, Measurement, Record, Trained
from clover.errors import UserError
from clover.evaluate.acceptance import depth_pairs, tau_pairs
from clover.evaluate.accuracy import TOP, HeadAccuracy
from clover.report.statistics import Pairs, Ratio
from clover.report.words import system_name

HEAD_COUNTS = {"top 1": ("forced", 1), "top 5": ("forced", 5), "top 1, chained": ("chained", 1)}
_SHOWN: dict[str, Callable[[Any], str]] = {
    "loss": "{} loss".format,
    "steps": "{} steps".format,
    "learning_rate": "rate {:g}".format,
    "tree": str,
}


@dataclass(frozen=True)
class Row:
    """One method, with its seed left out, at one temperature and batch size.

    By task and seed, `runs` are what the method did, and plain decoding in the same cell.
    """

    method: Method
    temperature: float
    batch_size: int
    runs: dict[tuple[str, int | None], tuple[Decoded, Decoded]]

    @property
    def own(self) -> list[Decoded]:
        """What the method did."""
        return [own for own, _ in self.runs.values()]

    @property
    def nodes(self) -> int:
        """Draft tokens per step at most; 0 for plain decoding."""
        return self.own[0].nodes

    @cached_property
    def speed(self) -> Ratio:
        """Tokens per second."""
        return self._ratio(lambda own, _: own.batches)

    @cached_property
    def speedup(self) -> Ratio:
        """Against plain decoding, the mean of logarithms over batches of prompts."""
        return self._ratio(
            lambda own, plain: [
                (log(tokens / seconds * base / count), 1.0)
                for (tokens, seconds), (count, base) in zip(own.batches, plain.batches, strict=True)
            ]
        )

    @cached_property
    def tau(self) -> Ratio:
        """Tokens per step."""
        return self._ratio(lambda own, _: tau_pairs(own.acceptances))

    @cached_property
    def depths(self) -> list[Ratio]:
        """Share accepted at each depth."""
        deepest = max(len(one.attempts) for own in self.own for one in own.acceptances)
        return [
            self._ratio(lambda own, _, d=depth: depth_pairs(own.acceptances, d)) for depth in range(deepest)
        ]

    def milliseconds(self, phase: str) -> float:
        """Of a decoding step."""
        return fmean(own.step_milliseconds[phase] for own in self.own)

    def _ratio(self, pairs: Callable[[Decoded, Decoded], Pairs]) -> Ratio:
        seeds: dict[int | None, list[tuple[float, float]]] = {}
        for (_, seed), cell in self.runs.items():
            seeds.setdefault(seed, []).extend(pairs(*cell))
        return Ratio.of(list(seeds.values()))


@dataclass(frozen=True)
class Difference:
    """An ablation: `method` less `against`, per head within its five best, and in τ where that was measured."""

    method: Method
    against: Method
    top5: list[Ratio]
    tau: Ratio | None


class Findings:
    """All records of a comparison, sorted by kind; UserError if there are none.

    The rows are of all tasks together; for how often each draft's heads are right see HEAD_COUNTS.
    """

    def __init__(self, records: Sequence[Record]):
        if not records:
            raise UserError("there are no results yet; run the suite first")
        self.records = records
        self.trained = [record.result for record in records if isinstance(record.result, Trained)]
        self.measurements = [record.result for record in records if isinstance(record.result, Measurement)]
        measured = chain.from_iterable(m.methods for m in self.measurements)
        self._varying = _varying_fields([one.method for one in (*measured, *self.trained)])
        self.tasks = list(dict.fromkeys(m.task for m in self.measurements))
        self.temperatures = sorted({m.temperature for m in self.measurements})
        self.batch_sizes = sorted({m.batch_size for m in self.measurements})
        self.rows = self.rows_of(self.tasks)
        self.heads = _head_ratios(self.trained)

    def label(self, method: Method) -> str:
        """The method's name, with as much as is needed to tell it from the others."""
        varying = self._varying.get(method.system, ())
        shown = {name: getattr(method, name) for name in _SHOWN if name in varying}
        words = [_SHOWN[name](value) for name, value in shown.items() if value is not None]
        return ", ".join([system_name(method.system), *words])

    def rows_of(self, tasks: Sequence[str]) -> list[Row]:
        """Of these tasks together, by temperature, batch size and method in the order of the suite."""
        rows: dict[tuple[float, int, Method], Row] = {}
        for m in self.measurements:
            for one in m.methods if m.task in tasks else ():
                setting = (m.temperature, m.batch_size, replace(one.method, seed=None))
                row = rows.setdefault(setting, Row(setting[2], m.temperature, m.batch_size, {}))
                row.runs[m.task, one.method.seed] = (one, m.methods[0])
        order = list(dict.fromkeys(method for _, _, method in rows))
        return [rows[key] for key in sorted(rows, key=lambda key: (key[0], key[1], order.index(key[2])))]

    def differences(self) -> list[Difference]:
        """What every draft with an `against` gained or lost, against the draft of equal steps most like it."""
        # Of several trees the first, of temperatures and batch sizes the lowest is taken.
        taus = {(replace(row.method, tree=None), row.method.tree): row.tau for row in reversed(self.rows)}
        found: dict[Method, Difference] = {}
        for one in self.trained:
            own = replace(one.method, seed=None)
            others = [m for m in self.heads if (m.system, m.steps) == (one.against, own.steps)]
            if others and own in self.heads:
                against = max(
                    others, key=lambda m: (m.loss == own.loss) + (m.learning_rate == own.learning_rate)
                )
                pairs = zip(self.heads[own]["top 5"], self.heads[against]["top 5"], strict=False)
                shared = [
                    tree for method, tree in reversed(taus) if method == own and (against, tree) in taus
                ]
                tau = taus[own, shared[0]] - taus[against, shared[0]] if shared else None
                found[own] = Difference(own, against, [a - b for a, b in pairs], tau)
        return list(found.values())


def _varying_fields(methods: Sequence[Method]) -> dict[str, set[str]]:
    """Per system the fields in which its methods differ; trees count for all systems if any two differ."""

    def differ(name: str, some: Iterable[Method]) -> bool:
        return len({getattr(method, name) for method in some} - {None}) > 1

    systems = {method.system: [m for m in methods if m.system == method.system] for method in methods}
    return {
        system: {name for name in _SHOWN if differ(name, methods if name == "tree" else own)}
        for system, own in systems.items()
    }


def _head_ratios(trained: Sequence[Trained]) -> dict[Method, dict[str, list[Ratio]]]:
    latest = {one.method: one.heads for one in trained if one.heads is not None}
    seeds: dict[Method, list[HeadAccuracy]] = {}
    for method, heads in latest.items():
        seeds.setdefault(replace(method, seed=None), []).append(heads)
    return {
        method: {
            name: [
                Ratio.of([one.pairs(getattr(one, counts), head, TOP.index(size)) for one in found])
                for head in range(len(found[0].totals))
            ]
            for name, (counts, size) in HEAD_COUNTS.items()
        }
        for method, found in seeds.items()
    }
