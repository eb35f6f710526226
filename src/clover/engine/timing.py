"""Measure the time of each phase of decoding."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch

STEP_PHASES = ("draft", "run", "verify", "keep")  # These are methods of `Runner`.
Method = TypeVar("Method", bound=Callable[..., Any])


class PhaseClock:
    """Adds up seconds per phase of the decoding step.

    On a GPU the work may not be done when a phase ends; `synchronize=True` waits for it, at the cost of some speed.
    """

    def __init__(self, synchronize: bool = False):
        self.synchronize = synchronize and torch.cuda.is_available()
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to phase `name`, "prefill" or one of STEP_PHASES."""
        started = time.perf_counter()
        yield
        if self.synchronize:
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - started

    @property
    def decoding_seconds(self) -> float:
        """Return the seconds of all phases except the prefill."""
        return sum(value for name, value in self.seconds.items() if name != "prefill")


def timed(phase: str) -> Callable[[Method], Method]:
    """Return a decorator for methods whose first argument is a `Batch`; its clock adds their time to `phase`."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def measured(self: Any, batch: Any, *arguments: Any) -> Any:
            with batch.clock.phase(phase):
                return method(self, batch, *arguments)

        return measured  # type: ignore[return-value]

    return decorate
