"""Decide which requests run, which wait, and when prompts run.

Sequences finish at different times. The place of a finished sequence goes to the next request while the others run.
Prompts run in chunks between the decoding steps, so that a long prompt does not delay other requests for long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import torch

from clover.drafting import Policy, StepOutcome, UpcomingStep
from clover.drafts import DraftModel, DraftSession
from clover.engine.batch import Batch
from clover.engine.details import events_of
from clover.engine.limits import EngineLimits
from clover.engine.prefill import Prefill
from clover.engine.prefixes import PrefixStore
from clover.engine.requests import Request, StepEvent
from clover.engine.runner import Runner
from clover.engine.sequences import RunningSequence, check_request
from clover.engine.timing import PhaseClock
from clover.engine.uncommitted import Uncommitted
from clover.sampling import Sampler
from clover.target import TargetSession


class Scheduler:
    """Decodes requests that arrive at any time: call `step` until it is `idle`. `Engine.open` makes one.

    The text of a request depends neither on the other requests nor on the time when it was added.

    Args:
        runner: runs the steps.
        draft: the draft in the form for inference; None for plain decoding.
        policy: chooses the drafter of each step.
        limits: sizes of chunks and caches.
        max_sequences: requests that run at once; the others wait in the order in which they were added.
        clock: adds up the time of each phase.
        store: finished texts, whose prefixes need not run again.
    """

    def __init__(
        self,
        runner: Runner,
        draft: DraftModel | None,
        policy: Policy,
        limits: EngineLimits,
        max_sequences: int,
        clock: PhaseClock,
        store: PrefixStore | None = None,
    ):
        self.max_sequences, self.clock = max_sequences, clock
        self._runner, self._draft, self._policy, self._limits = runner, draft, policy, limits
        self._target, self._store = runner.target, store
        self._added = 0
        self._waiting: deque[RunningSequence] = deque()
        self._joining: Prefill | None = None
        self._batch: Batch | None = None

    # -- requests --------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> int:
        """Queue a request and return its number, counted from 0; UserError as in `Engine.check`."""
        check_request(request, self._target)
        self._waiting.append(RunningSequence(self._added, request, self._target))
        self._added += 1
        return self._added - 1

    def cancel(self, index: int) -> None:
        """Forget a request that waits or runs, and free its place; do nothing if it has finished.

        Its text is not offered to the store: an interrupted text must not replace texts that other requests continue.
        """
        self._waiting = deque(one for one in self._waiting if one.index != index)
        for batch in (self._batch, self._joining and self._joining.batch):
            if batch is not None:
                with torch.inference_mode():
                    batch.drop([row for row, one in enumerate(batch.sequences) if one.index == index])
        if self._joining is not None and not self._joining.batch.sequences:
            self._joining = None
        self._free()

    @property
    def running(self) -> int:
        """Return the number of requests that are being decoded."""
        batch = self._batch  # Read once: another thread may read this while the last sequence leaves.
        return 0 if batch is None else len(batch.sequences)

    @property
    def idle(self) -> bool:
        """Return True if no request waits or runs."""
        return not (self._waiting or self._joining or self.running)

    def step(self) -> list[StepEvent]:
        """Run at most one chunk of prompts, then one decoding step; return one event per running request."""
        with torch.inference_mode():
            if self._joining is not None or (self._waiting and self.running < self.max_sequences):
                with self.clock.phase("prefill"):
                    self._admit()
            return self._decode(self._batch) if self._batch is not None and self._batch.sequences else []

    def close(self) -> None:
        """End the decoding; offer the texts so far to the store."""
        if self._batch is not None:
            with torch.inference_mode():
                self._offer(self._batch, range(len(self._batch.sequences)))

    def _offer(self, batch: Batch, rows: Iterable[int]) -> None:
        """Offer the texts of rows to the store."""
        for row in rows:
            one = batch.sequences[row]
            if self._store is not None and one.request.keep and one.finish_reason != "error":
                self._store.keep(batch, row)

    # -- one decoding step -----------------------------------------------------------------------------------------

    def _decode(self, batch: Batch) -> list[StepEvent]:
        started, batch.committed_backlog = time.perf_counter(), 0
        self.clock.steps += 1
        room = self._target.longest_run - max(batch.target.lengths)
        drafter = self._policy.choose(UpcomingStep(len(batch.sequences), room, batch.drafted_texts))
        result = self._runner.step(batch, drafter)
        emitted = [len(tokens) for tokens in result.tokens]
        emitted_when_drafted = tuple(
            n for n, one in zip(emitted, batch.sequences, strict=True) if not one.request.plain
        )
        backlog = batch.committed_backlog
        with self.clock.phase("keep"):
            events = events_of(batch.sequences, result, drafter.copies)
            self._leave(batch)
        nodes, seconds = result.tree.tokens.shape[1], time.perf_counter() - started
        self._policy.record(StepOutcome(nodes, emitted_when_drafted, seconds, backlog))
        return events

    def _leave(self, batch: Batch) -> None:
        """Remove the finished sequences; offer their texts to the store."""
        finished = [row for row, one in enumerate(batch.sequences) if one.finish_reason]
        if finished:
            self._offer(batch, finished)
            batch.drop(finished)
            self._free()

    def _free(self) -> None:
        """Free the memory of a batch if no sequence is left and none joins."""
        if not self.running and self._joining is None:
            self._batch = None

    # -- joining ---------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Run one chunk of the next prompts; sequences join the batch when their prompts are done."""
        if self._joining is None:
            self._joining = self._first_prefill() if self._batch is None else self._next_prefill()
        if not self._joining.finished:
            self._joining.advance()
        if self._joining.finished:
            joining, self._joining = self._joining.batch, None
            if self._batch is None:
                self._batch = joining
            else:
                self._batch.insert(joining)

    def _first_prefill(self) -> Prefill:
        """Begin the prefill of all waiting requests, because no running one is delayed, in the batch's own caches."""
        sequences = [self._waiting.popleft() for _ in range(min(self.max_sequences, len(self._waiting)))]
        every = [one.request for one in (*sequences, *self._waiting)]
        longest = max(len(one.prompt) + min(one.max_new_tokens, self._limits.new_tokens) for one in every)
        room = min(longest, self._target.longest_run) + self._policy.max_nodes
        return self._begin(sequences, self._runner.rows(len(sequences), self.max_sequences), room)

    def _next_prefill(self) -> Prefill:
        """Begin the prefill of the next prompts in separate caches; of several if they fit into one chunk."""
        sequences, longest = [self._waiting.popleft()], 0
        while self._waiting and self.running + len(sequences) < self.max_sequences:
            longest = max(longest, *(len(one.request.prompt) for one in (*sequences, self._waiting[0])))
            if longest * (len(sequences) + 1) > self._limits.prefill_chunk:
                break
            sequences.append(self._waiting.popleft())
        return self._begin(sequences, len(sequences), max(len(one.request.prompt) for one in sequences))

    def _begin(self, sequences: list[RunningSequence], rows: int, room: int) -> Prefill:
        """Begin the prefill of sequences in new caches, which start with the prefixes that the store has."""
        store = self._store
        found = [(one, None if store is None else store.find(one.request.prompt)) for one in sequences]
        for one, prefix in found:
            one.cached_tokens = one.prefilled = 0 if prefix is None else prefix[1]
        found.sort(key=lambda pair: pair[0].cached_tokens - len(pair[0].request.prompt))
        target = self._target.open(rows, room)
        draft = None if self._draft is None else self._draft.new_session(rows, room)
        # Opening the batch with all rows makes room for later sequences; unused rows are dropped at once.
        for row in range(rows - 1, len(sequences) - 1, -1):
            target.drop(row)
            if draft is not None:
                draft.drop(row)
        batch = self._make_batch([one for one, _ in found], target, draft)
        for row, (one, prefix) in enumerate(found):
            if prefix is not None:
                text, length = prefix
                one.cached_tokens = one.prefilled = text.fill(batch, row, length)
        return Prefill(batch, self._runner.hidden_state)

    def _make_batch(
        self, sequences: list[RunningSequence], session: TargetSession, draft: DraftSession | None
    ) -> Batch:
        for one in sequences:
            one.start()
        target, prompts = self._target, [one.request.prompt for one in sequences]
        params = [one.request.params for one in sequences]
        sampler = Sampler(params, prompts, target.vocab_size, target.device)
        root = torch.tensor([prompt[-1:] for prompt in prompts], device=target.device)
        width = target.hidden_width(self._runner.hidden_state)
        # This position has the count 0 until the prefill writes each prompt's last hidden state into it.
        hidden = torch.zeros(len(root), 1, width, dtype=target.dtype, device=root.device)
        uncommitted = [Uncommitted(hidden, root, [0] * len(root))]
        return Batch(
            sequences,
            session,
            draft,
            sampler,
            root,
            [] if draft is None else uncommitted,
            self._limits,
            self.clock,
        )
