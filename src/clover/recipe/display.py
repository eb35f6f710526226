"""Progress bars of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from clover.recipe.pretrain import PretrainProgress


@contextmanager
def pretrain_progress(console: Console) -> Iterator[Callable[[PretrainProgress], None]]:
    """A bar over the time budget of the target, with step, loss and speed."""
    text = TextColumn(
        "step {task.fields[step]}  loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"
    )
    with Progress(BarColumn(), text, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("target", total=1.0, step=0, loss=float("nan"), speed=0.0)

        def show(moment: PretrainProgress) -> None:
            fields = {"step": moment.step, "loss": moment.loss, "speed": moment.tokens_per_second}
            progress.update(task, completed=moment.share, **fields)

        yield show


@contextmanager
def counting(console: Console, total: int) -> Iterator[Callable[[int, int], None]]:
    """A bar over texts that are being written, with the tokens so far."""
    text = TextColumn("texts, {task.fields[tokens]:,} tokens")
    columns = (BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("texts", total=total, tokens=0)
        yield lambda texts, tokens: progress.update(task, completed=texts, tokens=tokens)
