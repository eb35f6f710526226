"""Run the engine in its own thread, and deliver the steps of each request on the event loop.

Run it in the thread that loaded the model. OpenMP keeps a pool of threads for each thread that computes. If two pools
have more threads than there are cores, all of them sleep between operations: 30 % less speed on two cores.

The engine's thread never waits for a client. Steps that a client has not read wait in its `Stream`, which is bounded.
A client that falls further behind is cut off, and its texts leave the batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event
from typing import NamedTuple

from clover.engine import Engine, Generation, PhaseClock, PrefixStore, Request, StepEvent
from clover.errors import is_out_of_memory
from clover.serve.errors import ApiError
from clover.serve.metrics import ServerMetrics
from clover.serve.options import ServerOptions

_MOST_BEHIND = 4096  # most steps that wait for a client to read them


class TextStep(NamedTuple):
    """One step of one text: the text's number in its request, the event, and the seconds of the batch's step."""

    choice: int
    event: StepEvent
    seconds: float


@dataclass(eq=False)
class _Job:
    """One text on its way through the engine; the scheduler numbers it by `index` once it has arrived there."""

    stream: Stream
    choice: int
    request: Request
    arrived: float
    index: int | None = None
    last: float | None = None  # when its latest tokens came


class Stream:
    """The steps of one request's texts, for the event loop's thread. It must always be closed."""

    def __init__(self, worker: Worker, requests: Sequence[Request], seconds: float, arrived: float):
        self._worker, self._waiting = worker, deque[TextStep]()
        self._ready, self._error = asyncio.Event(), None
        late = ApiError(408, f"it took longer than {seconds:g} s", "timeout")
        left = max(seconds - (time.perf_counter() - arrived), 0.0)
        self._limit = asyncio.get_running_loop().call_later(left, self.fail, late)
        self.jobs = [_Job(self, choice, request, arrived) for choice, request in enumerate(requests)]
        self._left = len(self.jobs)

    def put(self, step: TextStep) -> None:
        """Add a step."""
        self._waiting.append(step)
        self._ready.set()
        if len(self._waiting) > _MOST_BEHIND:
            self.fail(ApiError(408, "the response was not read; the request was cancelled", "timeout"))

    def fail(self, error: ApiError) -> None:
        """End with an error, which is raised after the steps that already wait."""
        self._error = self._error or error
        self._ready.set()
        self.close()

    async def next_steps(self) -> list[TextStep]:
        """Wait for steps, and return those since the last call; [] at the end. ApiError if the engine failed."""
        while not self._waiting and self._left and self._error is None:
            self._ready.clear()
            await self._ready.wait()
        steps = list(self._waiting)
        self._waiting.clear()
        if not steps and self._left and self._error is not None:
            raise self._error
        self._left -= sum(step.event.generation is not None for step in steps)
        return steps

    def close(self) -> None:
        """Cancel the texts that still run."""
        self._limit.cancel()
        self._worker.release(self.jobs)


class Worker:
    """The owner of the engine. Its thread executes `run`; the event loop's thread calls most other methods.

    Args:
        engine: decodes the requests.
        options: the limits: how many texts run, how many wait, for how long, and how many prefixes are kept.
    """

    def __init__(self, engine: Engine, options: ServerOptions, metrics: ServerMetrics):
        self._engine, self._options, self._metrics = engine, options, metrics
        self._most = options.max_sequences + options.max_waiting
        self._jobs: dict[int, _Job] = {}  # the batch's, by the scheduler's numbers
        self._open()
        self._held: dict[_Job, None] = {}  # submitted and not ended, in order
        self._entering = 0  # requests whose prompt is being tokenized
        self._refuses = False
        self._inbox = SimpleQueue[Callable[[], None] | None]()
        self._ended = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        metrics.watch(lambda: self.held, lambda: self.running)

    @property
    def running(self) -> int:
        """Return the number of texts that are being decoded."""
        return self._scheduler.running

    @property
    def idle(self) -> bool:
        """Return True if nothing runs or waits, in the engine or on the way to it."""
        return self._inbox.empty() and self._scheduler.idle

    @property
    def held(self) -> int:
        """Return the number of texts that run or wait, with the requests whose prompt is being tokenized."""
        return len(self._held) + self._entering

    def start(self) -> None:
        """Deliver steps on the running event loop."""
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Let `run` return after its current step, and wait for that."""
        self.end()
        await asyncio.to_thread(self._ended.wait)

    def end(self) -> None:
        """Let `run` return after its current step; any thread may call it."""
        self._inbox.put(None)

    def submit(self, requests: Sequence[Request], arrived: float) -> Stream:
        """Let requests run as soon as there is room; ApiError as `check_room`.

        `arrived` is the time of the client's request by `time.perf_counter`.
        """
        self.check_room(len(requests))
        stream = Stream(self, requests, self._options.request_seconds, arrived)
        for job in stream.jobs:
            self._held[job] = None
            self._inbox.put(lambda job=job: self._add(job))
        return stream

    def refuse_all(self) -> None:
        """End all requests with an error, and refuse new ones."""
        self._refuses = True
        for stream in {job.stream for job in self._held}:
            stream.fail(_stopping())

    def check_room(self, count: int = 1) -> None:
        """Raise ApiError 429 if there is no room for `count` more texts, 503 after `refuse_all`."""
        if self._refuses:
            raise _stopping()
        if self.held + count <= self._most:
            return
        self._metrics.refused.inc()
        waiting = [job.arrived for job in self._held if job.last is None]
        seconds = time.perf_counter() - min(waiting, default=time.perf_counter())
        retry = {"Retry-After": str(min(max(round(seconds), 1), 60))}
        raise ApiError(429, "too many requests are waiting; try again later", "queue_full", headers=retry)

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Count a request as waiting while its prompt is tokenized; ApiError as `check_room`."""
        self.check_room()
        self._entering += 1
        try:
            yield
        finally:
            self._entering -= 1

    def release(self, jobs: Sequence[_Job]) -> None:
        """Forget texts, and cancel those that have not ended."""
        for job in jobs:
            if job in self._held:
                del self._held[job]
                self._inbox.put(lambda job=job: self._cancel(job))

    def _deliver(self, steps: list[tuple[_Job, TextStep]]) -> None:
        for job, step in steps:
            if job in self._held:
                if step.event.generation is not None:
                    del self._held[job]
                    if step.event.generation.error:
                        job.stream.put(step._replace(event=replace(step.event, generation=None)))
                        job.stream.fail(_broken(step.event.generation, job.choice, len(job.stream.jobs)))
                        continue
                job.stream.put(step)

    # -- in the engine's thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Decode the submitted requests until `end` is called; the caller's thread becomes the engine's."""
        try:
            while self._do_requested():
                if not self._scheduler.idle:
                    self._step()
        finally:
            self._ended.set()

    def _open(self) -> None:
        """Begin with an empty batch."""
        store = PrefixStore(self._options.prefix_mib * 2**20) if self._options.prefix_mib else None
        self._clock = PhaseClock()
        self._scheduler = self._engine.open(self._options.max_sequences, self._clock, store=store)
        self._jobs.clear()

    def _do_requested(self) -> bool:
        """Execute the requested additions and cancellations; wait for one if nothing is decoded. False at the end."""
        wait = self.idle
        while wait or not self._inbox.empty():
            action = self._inbox.get()
            if action is None:
                return False
            action()
            wait = False
        return True

    def _add(self, job: _Job) -> None:
        job.index = self._scheduler.add(job.request)
        self._jobs[job.index] = job

    def _cancel(self, job: _Job) -> None:
        with self._failing():
            if job.index is not None and self._jobs.get(job.index) is job:
                del self._jobs[job.index]
                self._scheduler.cancel(job.index)

    def _step(self) -> None:
        before, events = self._clock.decoding_seconds, []
        with self._failing():
            events = self._scheduler.step()
        seconds, now = self._clock.decoding_seconds - before, time.perf_counter()
        steps = []
        for event in events:
            job = self._jobs[event.index]
            waited = now - (job.last or job.arrived)
            self._metrics.record(event, waited, job.last is None, not job.request.plain)
            job.last = now
            steps.append((job, TextStep(job.choice, event, seconds)))
            if event.generation is not None:
                del self._jobs[event.index]
        if steps:
            self._call(lambda: self._deliver(steps))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """If the block fails (for example, out of memory), end all texts and continue with an empty batch."""
        try:
            yield
        except Exception as error:
            memory = "; for less memory lower --max-sequences" if is_out_of_memory(error) else ""
            logging.getLogger("clover").exception("a decoding step failed; its requests were ended%s", memory)
            failed = list(self._jobs.values())
            self._metrics.failed.inc(len(failed))
            self._open()
            for job in failed:
                answer = ApiError(500, "the server could not continue this request", "engine_failed")
                self._call(lambda stream=job.stream, answer=answer: stream.fail(answer))

    def _call(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _broken(text: Generation, choice: int, texts: int) -> ApiError:
    """Return the error of a request of which a text failed; a failure of its grammar is the client's fault."""
    message = (f"text {choice + 1} of {texts}: " if texts > 1 else "") + text.error
    if text.error_kind == "grammar":
        return ApiError(400, message, "grammar_failed", "response_format")
    return ApiError(500, message, "engine_failed")


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping", "stopping")
