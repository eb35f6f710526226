"""From records to the numbers of tables and plots: names, means over prompts, tasks and seeds, differences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import log
from statistics import fmean
from typing import Any

from clover.errors import UserError
from clover.measure.acceptance import depth_pairs, tau_pairs
from clover.measure.ranks import TOP, HeadAccuracy
from clover.measure.report.statistics import Pair
from clover.measure.systems import system_name
from clover.validation import validated
from experiments.compare.plan import MethodKey
from experiments.compare.ratios import Ratio
from experiments.compare.results import CellConfig, Decoded, Measurement, Record, Trained
from experiments.compare.suite import PLAIN

HEAD_COUNTS = {"top 1": ("forced", 1), "top 5": ("forced", 5), "top 1, chained": ("chained", 1)}
_METHOD_WORDS: dict[str, Callable[[Any], str]] = {
    "loss": "{} loss".format,
    "steps": "{} steps".format,
    "learning_rate": "rate {:g}".format,
    "tree": str,
}
_CONDITION_WORDS: dict[str, Callable[[Any], str]] = {
    "target": "target {}".format,
    "weights": "weights {:.8}".format,
    "device": str,
    "dtype": str,
    "max_new_tokens": "{} new tokens".format,
}


@dataclass(frozen=True)
class Conditions:
    """What the results of one row have in common; see `CellConfig`."""

    target: str
    device: str
    dtype: str
    weights: str | None
    max_new_tokens: int | None

    @classmethod
    def of(cls, config: CellConfig) -> Conditions:
        """Return those of a cell."""
        place = config.place
        return cls(place.target, place.device, place.dtype, place.weights, config.max_new_tokens)


@dataclass(frozen=True)
class Series:
    """What has one row in a table, or one line in a plot: a method with its seed left out, and its conditions."""

    method: MethodKey
    conditions: Conditions


@dataclass(frozen=True)
class TaskRun:
    """What a method did on a task, and plain decoding in the same cell.

    `prompts` stands for the prompts, so that those of the same name and number are the same ones.
    """

    own: Decoded
    plain: Decoded
    prompts: Hashable


@dataclass(frozen=True)
class Row:
    """A series at one temperature and batch size; its runs by task and seed."""

    series: Series
    temperature: float
    batch_size: int
    runs: dict[tuple[str, int | None], TaskRun]

    @property
    def own(self) -> list[Decoded]:
        """Return what the method did."""
        return [run.own for run in self.runs.values()]

    @property
    def nodes(self) -> int:
        """Draft tokens per step at most; 0 for plain decoding."""
        return self.own[0].nodes

    @property
    def tasks(self) -> set[str]:
        """Return the tasks that it was measured on, with each of its seeds."""
        tasks, seeds = {task for task, _ in self.runs}, {seed for _, seed in self.runs}
        return {task for task in tasks if all((task, seed) in self.runs for seed in seeds)}

    @cached_property
    def speed(self) -> Ratio:
        """Return tokens per second."""
        return self._ratio(lambda run: run.own.batches)

    @cached_property
    def speedup(self) -> Ratio:
        """Return the speed-up against plain decoding, the mean of logarithms over batches of prompts."""
        return self._ratio(
            lambda run: [
                (log(tokens / seconds * base / count), 1.0)
                for (tokens, seconds), (count, base) in zip(run.own.batches, run.plain.batches, strict=True)
            ]
        )

    @cached_property
    def tau(self) -> Ratio:
        """Return tokens per step."""
        return self._ratio(lambda run: tau_pairs(run.own.acceptances))

    @cached_property
    def depths(self) -> list[Ratio]:
        """Return the share that was accepted at each depth."""
        deepest = max(len(one.attempts) for own in self.own for one in own.acceptances)
        return [
            self._ratio(lambda run, depth=depth: depth_pairs(run.own.acceptances, depth))
            for depth in range(deepest)
        ]

    def milliseconds(self, phase: str) -> float:
        """Return the mean milliseconds of a phase of a decoding step."""
        return fmean(own.step_milliseconds[phase] for own in self.own)

    def _ratio(self, pairs: Callable[[TaskRun], Sequence[Pair]]) -> Ratio:
        return Ratio.of(
            {
                (seed, (run.prompts, number)): pair
                for (_, seed), run in self.runs.items()
                for number, pair in enumerate(pairs(run))
            }
        )


@dataclass(frozen=True)
class Ablation:
    """What `series` gains over `against`, per head within its five best, and in τ where that was measured."""

    series: Series
    against: Series
    top5: list[Ratio]
    tau: Ratio | None


class Findings:
    """All records of a comparison, sorted by kind; UserError if there are none, or one's configuration is damaged.

    The systems are those of drafts; the rows are of all tasks together; for how often each draft's heads are right see
    HEAD_COUNTS.
    """

    def __init__(self, records: Sequence[Record]):
        if not records:
            raise UserError("there are no results yet; run the suite first")
        self.records = records
        cells = [(validated(CellConfig, one.config, f"result {one.key}"), one.result) for one in records]
        self._measured = [(config, one) for config, one in cells if isinstance(one, Measurement)]
        trained = [(config, one) for config, one in cells if isinstance(one, Trained)]
        self.trained = [(_series(one.method, config), one) for config, one in trained]
        measurements = [one for _, one in self._measured]
        methods = [
            *chain.from_iterable((d.method for d in m.methods) for m in measurements),
            *(one.method for _, one in trained),
        ]
        self.systems = list(dict.fromkeys(one.system for one in methods if one.system != PLAIN))
        self._varying = _varying_fields(methods)
        self._conditions = {Conditions.of(config) for config, _ in cells}
        self.tasks = list(dict.fromkeys(m.task for m in measurements))
        self.temperatures = sorted({m.temperature for m in measurements})
        self.batch_sizes = sorted({m.batch_size for m in measurements})
        self.rows = self.rows_of(self.tasks)
        self.heads = _head_ratios(trained)

    @property
    def complete_rows(self) -> list[Row]:
        """Return the rows that lack no task, which alone can be compared with each other."""
        return [row for row in self.rows if len(row.tasks) == len(self.tasks)]

    def label(self, series: Series) -> str:
        """Return the method's name, with as much as is needed to tell it from the others."""
        method, conditions = series.method, series.conditions
        named = self._varying.get(method.system, ())
        shown = [(say, getattr(method, name)) for name, say in _METHOD_WORDS.items() if name in named]
        for name, say in _CONDITION_WORDS.items():
            if _differ(name, self._conditions):
                shown.append((say, getattr(conditions, name)))
        return ", ".join([system_name(method.system), *(say(v) for say, v in shown if v is not None)])

    def rows_of(self, tasks: Sequence[str]) -> list[Row]:
        """Return the rows of these tasks together, by temperature, batch size and series in the order of the suite."""
        rows: dict[tuple[float, int, Series], Row] = {}
        for config, m in self._measured:
            for one in m.methods if m.task in tasks else ():
                setting = (m.temperature, m.batch_size, _series(one.method, config))
                row = rows.setdefault(setting, Row(setting[2], m.temperature, m.batch_size, {}))
                run = TaskRun(one, m.methods[0], _prompts_of(config, m))
                row.runs[m.task, one.method.seed] = run
        order = list(dict.fromkeys(series for _, _, series in rows))
        return [rows[key] for key in sorted(rows, key=lambda key: (key[0], key[1], order.index(key[2])))]

    def ablations(self) -> list[Ablation]:
        """Return what every draft with an `against` gained or lost, against the draft of equal steps most like it."""
        taus = self._taus()
        found: dict[Series, Ablation] = {}
        for series, one in self.trained:
            if series not in self.heads or (against := self._against(series, one)) is None:
                continue
            pairs = zip(self.heads[series]["top 5"], self.heads[against]["top 5"], strict=False)
            shared = [tree for own, tree in taus if own == series and (against, tree) in taus]
            tau = taus[series, shared[0]] - taus[against, shared[0]] if shared else None
            found[series] = Ablation(series, against, [a - b for a, b in pairs], tau)
        return list(found.values())

    def _against(self, series: Series, one: Trained) -> Series | None:
        own, wanted = series.method, (one.against, series.method.steps, series.conditions)
        others = [s for s in self.heads if (s.method.system, s.method.steps, s.conditions) == wanted]

        def likeness(other: Series) -> int:
            return (other.method.loss == own.loss) + (other.method.learning_rate == own.learning_rate)

        return max(others, key=likeness, default=None)

    def _taus(self) -> dict[tuple[Series, str | None], Ratio]:
        """By draft and tree; of temperatures and batch sizes the lowest is taken."""
        taus: dict[tuple[Series, str | None], Ratio] = {}
        for row in self.complete_rows:
            draft = replace(row.series, method=replace(row.series.method, tree=None))
            taus.setdefault((draft, row.series.method.tree), row.tau)
        return taus


def _series(method: MethodKey, config: CellConfig) -> Series:
    return Series(replace(method, seed=None), Conditions.of(config))


def _prompts_of(config: CellConfig, m: Measurement) -> Hashable:
    """Return the task, and all that decides which of its prompts are taken."""
    return m.task, config.tasks.get(m.task), config.place.target, config.prompts, m.batch_size


def _differ(name: str, some: Iterable[object]) -> bool:
    return len({getattr(one, name) for one in some} - {None}) > 1


def _varying_fields(methods: Sequence[MethodKey]) -> dict[str, set[str]]:
    """Per system the fields in which its methods differ; trees count for all systems if any two differ."""
    systems = {method.system: [m for m in methods if m.system == method.system] for method in methods}
    return {
        system: {name for name in _METHOD_WORDS if _differ(name, methods if name == "tree" else own)}
        for system, own in systems.items()
    }


def _head_ratios(trained: Sequence[tuple[CellConfig, Trained]]) -> dict[Series, dict[str, list[Ratio]]]:
    """Return the ratios of each series; of two results of a draft the later counts."""
    found: dict[Series, dict[int | None, tuple[Hashable, HeadAccuracy]]] = {}
    for config, one in trained:
        if one.heads is not None:
            seeds = found.setdefault(_series(one.method, config), {})
            seeds[one.method.seed] = (config.texts, one.heads)
    return {
        series: {
            name: [
                _head_ratio(seeds, counts, head, TOP.index(size))
                for head in range(min(len(heads.totals) for _, heads in seeds.values()))
            ]
            for name, (counts, size) in HEAD_COUNTS.items()
        }
        for series, seeds in found.items()
    }


def _head_ratio(
    seeds: Mapping[int | None, tuple[Hashable, HeadAccuracy]], counts: str, head: int, rank: int
) -> Ratio:
    return Ratio.of(
        {
            (seed, (texts, number)): pair
            for seed, (texts, heads) in seeds.items()
            for number, pair in enumerate(heads.pairs(getattr(heads, counts), head, rank))
        }
    )
