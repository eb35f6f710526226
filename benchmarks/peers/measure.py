"""Measure engines, each in alternating blocks with the anchor."""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.peers.engines import ANCHOR, Engine
from benchmarks.peers.peer import Settings
from benchmarks.peers.results import Block, Result
from benchmarks.peers.workers import PeerError, Worker, running
from clover.errors import UserError

_WARM_UP = 8  # tokens
_SHORT = 16  # tokens of the prompt whose first new token ends the start-up


@dataclass(frozen=True)
class Plan:
    """What is decoded.

    Args:
        prompts: token ids of each.
        batch_sizes: in ascending order, because the peak of memory only grows.
        text: tokens whose perplexity is measured.
        settings: of all workers; weights and method are each engine's.
        blank: the fields of a result that are the same for all.
    """

    prompts: list[list[int]]
    batch_sizes: list[int]
    max_new_tokens: int
    text: list[int]
    settings: Settings
    blank: dict[str, Any]

    def batches(self, size: int) -> list[list[list[int]]]:
        """Return the prompts in batches of equal size, the last one filled up with the first prompts."""
        count = -(-len(self.prompts) // size) * size
        filled = [self.prompts[i % len(self.prompts)] for i in range(count)]
        return [filled[at : at + size] for at in range(0, count, size)]

    def result(self, engine: Engine, size: int, **fields: Any) -> Result:
        """Return a result of an engine at a batch size, now."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        names = {"engine": engine.name, "plain": engine.plain, "batch_size": size, "date": now}
        return Result(**names, max_new_tokens=self.max_new_tokens, **self.blank, **fields)


@dataclass(frozen=True)
class Written:
    """A batch decoded once."""

    texts: list[list[int]]
    seconds: float

    @property
    def tokens(self) -> int:
        """Return the number of new tokens."""
        return sum(map(len, self.texts))


class Anchor:
    """The engine that every other one takes turns with, and all that it wrote."""

    def __init__(self, worker: Worker, plan: Plan) -> None:
        self._worker, self._plan = worker, plan
        self._runs: dict[tuple[int, int], list[Written]] = {}
        self.peaks: dict[int, int] = {}  # bytes of memory, by batch size

    def decode(self, size: int, number: int) -> Written:
        """Decode a batch; UserError if that fails, since nothing can be compared then."""
        try:
            found = _decode(self._worker, self._plan, size, number)
            if size >= max(self.peaks, default=0):  # afterwards, the peak is that of a larger size
                self.peaks[size] = self._worker.ask(do="memory")["peak"]
        except PeerError as error:
            raise UserError(f"{ANCHOR}, which the others are compared with, failed: {error}") from error
        self._runs.setdefault((size, number), []).append(found)
        return found

    def blocks(self, size: int) -> list[Block]:
        """Return each batch in the middle of its times; what no other engine has asked for is decoded now."""
        found = []
        for number in range(len(self._plan.batches(size))):
            runs = self._runs.get((size, number)) or [self.decode(size, number)]
            seconds = median(run.seconds for run in runs)
            found.append(_block(replace(runs[0], seconds=seconds), replace(runs[0], seconds=seconds)))
        return found


def measure(engines: list[Engine], plan: Plan) -> Iterator[Result]:
    """Yield a result per engine and batch size as soon as it is there; the first engine is the anchor, and comes last.

    What cannot run is yielded with the reason. UserError if the anchor cannot run.
    """
    first, *others = engines
    assert first.name == ANCHOR
    if reason := first.why_not(plan.settings):
        raise UserError(f"{ANCHOR}, which the others are compared with, cannot run: {reason}")
    try:
        with running(first, plan.settings) as worker:
            facts, anchor = _facts(worker, first, plan), Anchor(worker, plan)
            for engine in others:
                yield from _measure(engine, anchor, plan)
            for size in plan.batch_sizes:
                blocks = anchor.blocks(size)
                yield plan.result(first, size, blocks=blocks, **_with_peak(facts, anchor.peaks[size]))
    except PeerError as error:
        raise UserError(f"{ANCHOR}, which the others are compared with, failed: {error}") from error


def _measure(engine: Engine, anchor: Anchor, plan: Plan) -> Iterator[Result]:
    reason, left = engine.why_not(plan.settings), list(plan.batch_sizes)
    if reason is None:
        try:
            with running(engine, plan.settings) as worker:
                facts = _facts(worker, engine, plan)
                while left:
                    if left[0] > 1 and not worker.ready["batches"]:
                        reason = "it decodes one text at a time"
                        break
                    blocks = _take_turns(worker, anchor, plan, left[0], engine.name)
                    peak = worker.ask(do="memory")["peak"]
                    yield plan.result(engine, left.pop(0), blocks=blocks, **_with_peak(facts, peak))
        except PeerError as error:
            reason = str(error)
    for size in left:
        yield plan.result(engine, size, left_out=reason)


def _take_turns(worker: Worker, anchor: Anchor, plan: Plan, size: int, name: str) -> list[Block]:
    """Decode each batch with both, now the one and now the other first: a machine that slows down favours none."""
    blocks, count = list[Block](), len(plan.batches(size))
    for number in range(count):
        if number % 2:
            found = _decode(worker, plan, size, number)
            before = anchor.decode(size, number)
        else:
            before = anchor.decode(size, number)
            found = _decode(worker, plan, size, number)
        blocks.append(_block(found, before))
        _note(f"{name}, batch {size}: {number + 1} of {count}, {blocks[-1].ratio:.2f} times {ANCHOR}")
    return blocks


def _note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _block(run: Written, anchor: Written) -> Block:
    texts = [hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16] for text in run.texts]
    return Block(run.tokens, run.seconds, anchor.tokens, anchor.seconds, texts)


def _decode(worker: Worker, plan: Plan, size: int, number: int) -> Written:
    found = worker.ask(do="generate", prompts=plan.batches(size)[number], max_new_tokens=plan.max_new_tokens)
    run = Written(found["texts"], found["seconds"])
    if not all(run.texts) or len(run.texts) != size:
        raise PeerError(f"it wrote {sum(map(bool, run.texts))} texts for {size} prompts")
    return run


def _with_peak(facts: dict[str, Any], peak: int) -> dict[str, Any]:
    """Return the facts with the most memory of loading and of a batch size."""
    return facts | {"peak_memory": max(facts["peak_memory"], peak)}


def _facts(worker: Worker, engine: Engine, plan: Plan) -> dict[str, Any]:
    """Return what does not depend on the batch size, and leave the worker warm."""
    worker.ask(do="generate", prompts=[plan.prompts[0][:_SHORT]], max_new_tokens=1)
    seconds = time.perf_counter() - worker.started
    _note(f"{engine.name} wrote its first token after {seconds:.1f} s")
    worker.ask(do="generate", prompts=[plan.prompts[0]], max_new_tokens=_WARM_UP)
    memory = worker.ask(do="memory")
    facts = {
        "startup_seconds": seconds,
        "peak_memory": memory["peak"],
        "own_memory": memory["own"],
        "versions": worker.ready["versions"],
    }
    if engine.name == engine.plain:
        found = worker.ask(do="perplexity", tokens=plan.text)
        facts |= {"perplexity": found["perplexity"], "perplexity_tokens": len(plan.text)}
    return facts
