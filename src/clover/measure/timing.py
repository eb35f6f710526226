"""Decode the same batches with several methods in turn: what every comparison of speeds is measured with.

In each round every method decodes every batch once; which one is first changes from batch to batch, so that whatever
else the machine does slows all of them alike. The median of the rounds counts; the lowest and highest are its spread.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import add
from typing import TypeVar

import torch

from clover.engine import Engine, PhaseClock, Request
from clover.metrics import Acceptance
from clover.sampling import SamplingParams

T = TypeVar("T")
WRITTEN_TOGETHER = 8  # texts in a batch where their speed is not measured
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Run:
    """One batch decoded once: the new tokens of each text, and the seconds for all of it, prefill included.

    `acceptances` and `steps` (the new tokens of each step) are per text; they are empty where the method does not
    report them.
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


Decode = Callable[[Sequence[Request]], Run]


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


def warm_up(methods: Mapping[T, Decode], batch: Sequence[Request]) -> None:
    """Decode the first few tokens of a batch with every method."""
    for decode in methods.values():
        decode([replace(one, max_new_tokens=min(one.max_new_tokens, _WARM_UP_TOKENS)) for one in batch])


def interleave(
    methods: Mapping[T, Decode],
    batches: Sequence[Sequence[Request]],
    rounds: int,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[T, list[list[Run]]]:
    """Decode all batches with every method, `rounds` times, after a warm-up.

    Returns, per method and round, the run of each batch. `progress` is called with the share that is done, 0 … 1.
    """
    warm_up(methods, batches[0])
    runs: dict[T, list[list[Run]]] = {method: [[] for _ in range(rounds)] for method in methods}
    turns = [(number, batch) for number in range(rounds) for batch in batches]
    for turn, (number, batch) in enumerate(turns):
        for method in take_turns(list(methods), turn):
            runs[method][number].append(methods[method](batch))
        progress((turn + 1) / len(turns))
    return runs


def take_turns(methods: list[T], turn: int) -> list[T]:
    """Return the methods in the order of a turn: each is first in one of them, and every other order is reversed.

    >>> ["".join(take_turns(list("abc"), turn)) for turn in range(4)]
    ['abc', 'bac', 'cab', 'acb']
    """
    start = turn % len(methods)
    order = methods[start:] + methods[:start]
    return order if turn % 2 == 0 else [order[0], *order[:0:-1]]


class TimedDecoding:
    """One batch on one engine, decoded piece by piece; `seconds` counts only the time inside `advance`."""

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
        self._left = sum(request.max_new_tokens for request in batch)
        self._total = self._left
        self._steps: list[list[tuple[int, ...]]] = [[] for _ in batch]
        self._acceptances = [Acceptance() for _ in batch]
        self._limits = [request.max_new_tokens for request in batch]

    @property
    def share(self) -> float:
        """Return the share of the work that is done, 0 … 1; a text that ends early is done."""
        return 1 - self._left / self._total

    def advance(self, seconds: float = float("inf")) -> Run | None:
        """Decode for about so many seconds, and until some text has its next tokens.

        Returns the whole run once nothing is left to decode, and None before.
        """
        wait_for(self._device)
        started = time.perf_counter()
        for event in self._events:
            self._steps[event.index].append(event.tokens)
            self.tokens += len(event.tokens)
            self._left -= len(event.tokens)
            self.pieces.append(event.text)
            if event.generation is not None:
                self._acceptances[event.index] = event.generation.acceptance
                self._left -= self._limits[event.index] - len(event.generation.tokens)
            gone = time.perf_counter() - started
            if gone >= seconds:
                self.seconds += gone
                return None
        wait_for(self._device)
        self.seconds += time.perf_counter() - started
        return Run(
            texts=tuple(tuple(chain(*row)) for row in self._steps),
            seconds=self.seconds,
            acceptance=reduce(add, self._acceptances, Acceptance()),
            clock=self.clock,
            acceptances=tuple(self._acceptances),
            steps=tuple(map(tuple, self._steps)),
        )


def decode(
    engine: Engine,
    batch: Sequence[Request],
    synchronize: bool = False,
    max_sequences: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Decode a batch once, `max_sequences` at a time; for `synchronize` see `PhaseClock`.

    `progress` is called with the share that is done, 0 … 1, after each step of a text.
    """
    decoding = TimedDecoding(engine, batch, synchronize, max_sequences)
    while (run := decoding.advance(float("inf") if progress is None else 0.0)) is None:
        assert progress is not None, "time that is not limited is enough"
        progress(decoding.share)
    return run


def speed(runs: Sequence[Run]) -> float:
    """Return the tokens per second of all runs together."""
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def speedups(rounds: Sequence[Sequence[Run]], base: Sequence[Sequence[Run]]) -> list[float]:
    """Return the speed of one method divided by that of another, in each round."""
    return [speed(one) / speed(other) for one, other in zip(rounds, base, strict=True)]


def acceptance_of(runs: Sequence[Run]) -> Acceptance:
    """Return the acceptance of all runs together."""
    return reduce(add, (run.acceptance for run in runs), Acceptance())


def texts_of(runs: Sequence[Run]) -> list[tuple[int, ...]]:
    """Return the texts of all runs, as token ids."""
    return [text for run in runs for text in run.texts]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
