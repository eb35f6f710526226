"""Where the time of decoding goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

STEP_PHASES = ("draft", "verify", "accept", "keep")


class PhaseClock:
    """Adds up seconds per phase of the decoding step.

    On a GPU work is only queued when a phase ends; `synchronize=True` waits for it, at the cost of some speed.
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
        """All phases but the prefill."""
        return sum(value for name, value in self.seconds.items() if name != "prefill")
