"""Decode a batch, at once or in slices, and record its texts, steps and seconds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

import torch

from clover.engine import Engine, PhaseClock, Request
from clover.metrics import Acceptance
from clover.sampling import SamplingParams

WRITTEN_TOGETHER = 8  # texts in a batch if their speed is not measured


@dataclass(frozen=True)
class Run:
    """One batch decoded once: the new tokens of each text, and the total seconds, prefill included.

    `acceptances` and `steps` (the new tokens of each step) are per text; they are empty if the method does not report
    them.
    """

    texts: tuple[tuple[int, ...], ...]
    seconds: float
    acceptance: Acceptance
    clock: PhaseClock
    acceptances: tuple[Acceptance, ...] = ()
    steps: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def tokens(self) -> int:
        """Return the number of new tokens of all texts."""
        return sum(map(len, self.texts))


def make_batches(
    prompts: Sequence[tuple[int, ...]],
    batch_size: int,
    temperature: float,
    max_new_tokens: int,
    longest_run: int,
    seed: int = 0,
) -> list[list[Request]]:
    """Return all prompts in batches of equal size, the last one filled up with the first prompts.

    Request i has the seed `seed + i`, and as many new tokens as `longest_run` leaves room for.
    """
    requests = []
    for i in range(-(-len(prompts) // batch_size) * batch_size):
        prompt = prompts[i % len(prompts)]
        tokens = min(max_new_tokens, longest_run - len(prompt))
        requests.append(Request(prompt, tokens, SamplingParams(temperature=temperature, seed=seed + i)))
    return [requests[at : at + batch_size] for at in range(0, len(requests), batch_size)]


class TimedDecoding:
    """One batch on one engine, decoded in slices; `seconds` counts only the time inside `advance`."""

    def __init__(
        self,
        engine: Engine,
        batch: Sequence[Request],
        synchronize: bool = False,
        max_sequences: int | None = None,
    ):
        self.clock = PhaseClock(synchronize)
        self.seconds, self.tokens = 0.0, 0
        self.pieces: list[str] = []
        self._device = engine.target.device
        self._events = engine.run(batch, self.clock, max_sequences=max_sequences)
        self._steps: list[list[tuple[int, ...]]] = [[] for _ in batch]
        self._acceptances = [Acceptance() for _ in batch]

    def advance(self, seconds: float = inf) -> Run | None:
        """Decode for about `seconds`, and at least until one text has new tokens.

        Returns the whole run when nothing is left to decode, and None before.
        """
        wait_for(self._device)
        started = time.perf_counter()
        for event in self._events:
            self._steps[event.index].append(event.tokens)
            self.tokens += len(event.tokens)
            self.pieces.append(event.text)
            if event.generation is not None:
                self._acceptances[event.index] = event.generation.acceptance
            gone = time.perf_counter() - started
            if gone >= seconds:
                self.seconds += gone
                return None
        wait_for(self._device)
        self.seconds += time.perf_counter() - started
        return self.run

    @property
    def run(self) -> Run:
        """Return the run so far; an unfinished text has no acceptance yet."""
        return Run(
            texts=tuple(tuple(chain(*row)) for row in self._steps),
            seconds=self.seconds,
            acceptance=sum(self._acceptances, Acceptance()),
            clock=self.clock,
            acceptances=tuple(self._acceptances),
            steps=tuple(map(tuple, self._steps)),
        )


def time_decoding(
    engine: Engine, batch: Sequence[Request], synchronize: bool = False, max_sequences: int | None = None
) -> Run:
    """Decode a batch once, `max_sequences` at a time; `PhaseClock` explains `synchronize`."""
    run = TimedDecoding(engine, batch, synchronize, max_sequences).advance()
    assert run is not None, "time that is not limited is enough"
    return run


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def join_runs(runs: Sequence[Run]) -> Run:
    """Join runs of different texts into one, with the clock of the first."""
    every = [(run.texts, run.acceptances, run.steps) for run in runs]
    texts, acceptances, steps = (tuple(chain(*parts)) for parts in zip(*every, strict=True))
    acceptance = sum((run.acceptance for run in runs), Acceptance())
    return Run(texts, sum(run.seconds for run in runs), acceptance, runs[0].clock, acceptances, steps)
