"""What happens in the middle of a training: an action before an optimizer step, by PyTorch's own hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


@contextmanager
def at_each_step(action: Callable[[int], None] = lambda _: None) -> Iterator[list[int]]:
    """Call `action` with 1, 2, … before each optimizer step in the block; yields the numbers so far.

    AdamW is counted, of which every training has one.
    """
    steps: list[int] = []

    def count(optimizer: Optimizer, *_: object) -> None:
        if isinstance(optimizer, torch.optim.AdamW):
            steps.append(len(steps) + 1)
            action(steps[-1])

    handle = register_optimizer_step_pre_hook(count)
    try:
        yield steps
    finally:
        handle.remove()


def after_steps(steps: int, action: Callable[[], None]) -> Callable[[int], None]:
    """Return what does `action` in the middle of the step after `steps` others."""
    return lambda step: action() if step == steps + 1 else None
