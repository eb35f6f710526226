"""A progress bar over all cells, with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from typing_extensions import Self

from clover.compare.plan import AccuracyCell, Cell, MeasuringCell, TextCell, TrainingCell

_TOKENS_PER_SECOND = {"text": 500, "training": 3000, "measuring": 150, "accuracy": 200}  # first guesses


def guess_seconds(cell: Cell) -> float:
    """How long a cell may take, before anything is known about this machine."""
    if isinstance(cell, TextCell):
        tokens = cell.options.texts * cell.options.max_length
        bound = cell.options.minutes
    elif isinstance(cell, TrainingCell):
        budget = cell.draft.budget
        assert budget is not None
        tokens, bound = (budget.steps or 0) * cell.options.batch_tokens, budget.minutes
    elif isinstance(cell, MeasuringCell):
        methods = 1 + sum(len(draft.trees) for draft in cell.drafts)
        batches = -(-cell.config["prompts"] // cell.batch_size)
        tokens = methods * cell.config["rounds"] * batches * cell.config["max_new_tokens"]
        bound = None
    else:
        assert isinstance(cell, AccuracyCell)
        tokens, bound = cell.config["prompts"] * cell.config["max_new_tokens"], None
    return 60 * bound if bound else tokens / _TOKENS_PER_SECOND[cell.kind]


class Forecast:
    """Time left: the guesses, corrected for each kind of cell by what its finished cells took.

    >>> from clover.compare.plan import Place
    >>> forecast = Forecast()
    >>> forecast.seconds_left([])
    0.0
    """

    def __init__(self) -> None:
        self._taken: dict[str, tuple[float, float]] = {}  # per kind: seconds, and what had been guessed

    def learn(self, cell: Cell, seconds: float) -> None:
        """Take note of a finished cell."""
        taken, guessed = self._taken.get(cell.kind, (0.0, 0.0))
        self._taken[cell.kind] = taken + seconds, guessed + guess_seconds(cell)

    def seconds(self, cell: Cell) -> float:
        """How long a cell will take."""
        taken, guessed = self._taken.get(cell.kind) or self._all()
        return guess_seconds(cell) * (taken / guessed if guessed else 1.0)

    def seconds_left(self, cells: Sequence[Cell]) -> float:
        """How long all of `cells` will take."""
        return float(sum(self.seconds(cell) for cell in cells))

    def _all(self) -> tuple[float, float]:
        return sum(t for t, _ in self._taken.values()), sum(g for _, g in self._taken.values())


class Display:
    """Shows where a run stands: a bar on a terminal, a line per cell elsewhere. Use it as a context manager."""

    def __init__(self, console: Console, cells: Sequence[Cell], forecast: Forecast, total: int):
        self.console, self.forecast, self.total = console, forecast, total
        self._waiting = list(cells)
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=1.0)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, cell: Cell) -> None:
        """A cell begins. A training shows a bar of its own meanwhile."""
        self._show(cell, 0.0)
        if cell.kind == "training":
            self._bar.stop()
            self.console.print(self._line(cell, 0.0), markup=False, highlight=False, soft_wrap=True)

    def share(self, share: float) -> None:
        """So much of the cell that runs is done, 0 … 1."""
        self._show(self._waiting[0], share)

    def finish(self, cell: Cell, seconds: float) -> None:
        """The cell has ended."""
        self.forecast.learn(cell, seconds)
        self._waiting.remove(cell)
        if cell.kind == "training":
            self._resume()
        if not self.console.is_terminal:
            done = self.total - len(self._waiting)
            line = f"{done}/{self.total} {cell.label}: {clock(seconds)}; {self._left(0.0)} left"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _resume(self) -> None:
        if self.console.is_terminal:
            self._bar.start()

    def _show(self, cell: Cell, share: float) -> None:
        gone = time.monotonic() - self._started
        left = self.forecast.seconds_left(self._waiting)
        self._bar.update(
            self._task, completed=gone / max(gone + left, 1e-9), description=self._line(cell, share)
        )

    def _line(self, cell: Cell, share: float) -> str:
        number = self.total - len(self._waiting) + 1
        return f"{number}/{self.total}  {cell.label}  {self._left(share)} left"

    def _left(self, share: float) -> str:
        left = self.forecast.seconds_left(self._waiting)
        if self._waiting:
            left -= share * self.forecast.seconds(self._waiting[0])
        return clock(left)


def clock(seconds: float) -> str:
    """Seconds for people.

    >>> clock(3.2), clock(75), clock(7300)
    ('3 s', '1:15 min', '2:01 h')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
