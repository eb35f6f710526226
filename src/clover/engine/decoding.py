"""A running batch that requests join and leave at any time.

Sequences have different lengths and finish at different times; the place of one that has finished goes to the next
request while the others run. Prompts are run in chunks between the decoding steps: a long one holds up nobody.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from clover.cache import KVCache
from clover.drafting import Running, StepOutcome
from clover.drafts import DraftSession
from clover.engine.batch import Batch, PrefixCache
from clover.engine.details import with_details
from clover.engine.pending import Pending
from clover.engine.prefill import Prefill, chunk_size
from clover.engine.prefixes import PrefixStore
from clover.engine.requests import Request, StepEvent
from clover.engine.sequences import RunningSequence
from clover.engine.step import draft_tree, keep, run_tree, to_host, verify_tree
from clover.engine.timing import PhaseClock
from clover.sampling import Sampler

if TYPE_CHECKING:
    from clover.engine.engine import Engine

_ROOM = 256  # new tokens that a cache is made for at once: few texts are as long as they may become


class Decoding:
    """What `Engine.open` returns. Add requests at any time, and call `step` until it is `idle`.

    The text of a request does not depend on which others run beside it, nor on when it was added.

    Args:
        max_sequences: requests that run at once; the others wait in the order in which they were added.
        prefix: earlier turns of the only request that will be added; brought up to date by its end or by `close`.
        store: texts that have ended, whose beginnings need not be run again.
    """

    def __init__(
        self,
        engine: Engine,
        max_sequences: int,
        clock: PhaseClock,
        prefix: PrefixCache | None = None,
        store: PrefixStore | None = None,
    ):
        self.max_sequences, self.clock, self._store = max_sequences, clock, store
        self._engine, self._target, self._prefix = engine, engine.target, prefix
        self._added = 0
        self._waiting: deque[RunningSequence] = deque()
        self._joining: Prefill | None = None
        self._batch: Batch | None = None

    # -- requests --------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> int:
        """Put a request behind those that wait, and return its number, from 0; UserError as `Engine.check`."""
        self._engine.check(request)
        self._waiting.append(RunningSequence(self._added, request, self._target))
        self._added += 1
        return self._added - 1

    def cancel(self, index: int) -> None:
        """Forget a request that waits or runs, and free its place; nothing happens if it has finished.

        Its text is not offered to the store: texts that were interrupted must not push out those that others continue.
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
        """Requests that are being decoded."""
        batch = self._batch  # read once: other threads ask, too, while the last sequence leaves
        return 0 if batch is None else len(batch.sequences)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._joining or self.running)

    def step(self) -> list[StepEvent]:
        """Run at most one chunk of prompts, then one decoding step of all that run; returns each one's share."""
        if self._engine.captured is not None:
            self._engine.captured.begin_step()
        with torch.inference_mode():
            if self._joining is not None or (self._waiting and self.running < self.max_sequences):
                with self.clock.phase("prefill"):
                    self._admit()
            return self._decode(self._batch) if self._batch is not None and self._batch.sequences else []

    def close(self) -> None:
        """Leave what was decoded so far to the next turn of the conversation."""
        batch = self._batch or (self._joining and self._joining.batch)
        if self._prefix is not None and batch is not None and batch.sequences:
            sequence = batch.sequences[0]
            self._prefix.tokens = [*sequence.request.prompt, *sequence.tokens]
            self._prefix.cache, self._prefix.session = batch.cache, batch.session

    # -- joining ---------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Run one chunk of the prompts that are next, and let those join that are done."""
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
        """All that wait, since nobody is held up, in the caches that will be the running batch's own."""
        sequences = [self._waiting.popleft() for _ in range(min(self.max_sequences, len(self._waiting)))]
        prefix = self._prefix and self._prefix.take(sequences[0].request.prompt)
        if prefix is not None and prefix.cache is not None:
            sequences[0].cached_tokens = sequences[0].prefilled = len(prefix.tokens)
            return self._prefill(self._make_batch(sequences, prefix.cache, prefix.session))
        engine = self._engine
        every = [one.request for one in (*sequences, *self._waiting)]
        longest = max(len(request.prompt) + min(request.max_new_tokens, _ROOM) for request in every)
        rows, capacity = len(sequences), min(longest, self._target.longest_run) + engine.policy.max_nodes
        if engine.captured is not None:  # graphs are made for one storage: it has all rows from the start
            longest = max(len(one.request.prompt) for one in sequences)
            rows, capacity = engine.captured.sizes(self.max_sequences, longest)
        return self._begin(sequences, rows, capacity)

    def _next_prefill(self) -> Prefill:
        """The next prompts, in caches of their own; several if all of them together are one chunk."""
        sequences, longest = [self._waiting.popleft()], 0
        while self._waiting and self.running + len(sequences) < self.max_sequences:
            longest = max(longest, *(len(one.request.prompt) for one in (*sequences, self._waiting[0])))
            if longest * (len(sequences) + 1) > self._engine.prefill_chunk:
                break
            sequences.append(self._waiting.popleft())
        capacity = max(len(one.request.prompt) for one in sequences)
        return self._begin(sequences, len(sequences), capacity)

    def _begin(self, sequences: list[RunningSequence], rows: int, capacity: int) -> Prefill:
        """Begin the prefill of sequences, in new caches, after what the store holds of their prompts."""
        store = self._store
        found = [(one, None if store is None else store.find(one.request.prompt)) for one in sequences]
        for one, prefix in found:
            one.cached_tokens = one.prefilled = 0 if prefix is None else prefix.length
        found.sort(key=lambda pair: pair[0].cached_tokens - len(pair[0].request.prompt))
        batch = self._new_batch([one for one, _ in found], rows, capacity)
        for row, (_, prefix) in enumerate(found):
            if prefix is not None:
                prefix.fill(batch, row)
        return self._prefill(batch)

    def _prefill(self, batch: Batch) -> Prefill:
        return Prefill(batch, self._target, self._engine.hidden_state, self._engine.prefill_chunk)

    def _new_batch(self, sequences: list[RunningSequence], rows: int, capacity: int) -> Batch:
        """Sequences in new caches of so many rows."""
        draft = self._engine.draft
        cache = self._target.new_cache(rows, capacity)
        session = None if draft is None else draft.new_session(rows, capacity)
        for row in range(rows - 1, len(sequences) - 1, -1):
            cache.drop(row)
            if session is not None:
                session.drop(row)
        return self._make_batch(sequences, cache, session)

    def _make_batch(
        self, sequences: list[RunningSequence], cache: KVCache, session: DraftSession | None
    ) -> Batch:
        for one in sequences:
            one.start()
        target, prompts = self._target, [one.request.prompt for one in sequences]
        sampler = Sampler(
            [one.request.params for one in sequences], prompts, target.vocab_size, target.device
        )
        root = torch.tensor([prompt[-1] for prompt in prompts], device=target.device)
        pending = Pending(root, target.hidden_width(self._engine.hidden_state), target.dtype)
        return Batch(sequences, cache, session, sampler, root, pending)

    # -- one decoding step -----------------------------------------------------------------------------------------

    def _decode(self, batch: Batch) -> list[StepEvent]:
        engine, clock, started = self._engine, self.clock, time.perf_counter()
        clock.steps += 1
        behind = batch.pending.behind
        running = Running(
            batch_size=len(batch.sequences),
            room=self._target.longest_run - batch.cache.length,
            texts=lambda: [sequence.repeating for sequence in batch.sequences],
        )
        drafter = engine.policy.choose(running)
        with clock.phase("draft"):
            tree = draft_tree(engine, batch, drafter)
            caught_up = behind if batch.pending.empty else 0
        with clock.phase("verify"):
            output = run_tree(engine, batch, tree)
        with clock.phase("accept"):
            verified = verify_tree(batch, tree, output)
            steps = to_host(verified, tree)
        with clock.phase("keep"):
            counts = [len(step.tokens) for step in steps]
            keep(batch, output.read, verified, counts)
            pairs = zip(batch.sequences, steps, strict=True)
            events = [sequence.accept(step.tokens, step.path, step.depth) for sequence, step in pairs]
            requests = [sequence.request for sequence in batch.sequences]
            events = with_details(events, requests, steps, tree, output.logits, drafter)
            self._leave(batch)
        seconds = time.perf_counter() - started
        engine.policy.record(StepOutcome(tree.tokens.shape[1], tuple(counts), seconds, caught_up))
        return events

    def _leave(self, batch: Batch) -> None:
        """Take out the sequences that have finished."""
        finished = [row for row, one in enumerate(batch.sequences) if one.finish_reason]
        if not finished:
            return
        if self._prefix is not None:
            if batch.session is not None and batch.pending.behind:
                batch.catch_up(chunk_size(self._engine.prefill_chunk, 1, batch.cache.length))
            self.close()
            self._batch = None
        else:
            self._drop(batch, finished)
            self._free()

    def _drop(self, batch: Batch, rows: Sequence[int]) -> None:
        """Take out sequences that have finished; their texts are offered to the store."""
        for row in rows:
            if self._store is not None and batch.sequences[row].request.keep:
                self._store.keep(batch, row, chunk_size(self._engine.prefill_chunk, 1, batch.cache.length))
        batch.drop(rows)

    def _free(self) -> None:
        """Give the memory of a batch back that has no sequences left and gets none."""
        if not self.running and self._joining is None:
            self._batch = None
