"""Prompts on their way into the running batch.

Shapes: B batch, T tokens of a chunk, W width of the hidden states that the draft reads.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from clover.drafting import PrefillOutcome
from clover.engine.batch import Batch
from clover.engine.chunks import chunk_size
from clover.target import TargetModel


class Prefill:
    """Runs all prompts of a batch but for their last tokens, chunk by chunk.

    The draft takes in all of that but the last position, so that every row has exactly one position left for it when
    decoding starts; none if its prompt is a single token. Where it is not expected to be asked, all is left.

    Args:
        batch: rows that have not run yet.
        target: runs them.
        hidden_state: kind of the hidden states that the draft reads.
        chunk: prompt tokens that are run at once per row; fewer of many rows and after a long text, which saves memory.
        done: tokens that the caches hold already.
        drafts: whether the draft is expected to be asked.
    """

    def __init__(
        self,
        batch: Batch,
        target: TargetModel,
        hidden_state: str,
        chunk: int,
        done: int = 0,
        drafts: bool = True,
    ):
        self.batch, self._target, self._hidden_state = batch, target, hidden_state
        self._chunk, self._done, self._drafts = chunk, done, drafts

    @property
    def finished(self) -> bool:
        """Whether the rows can decode."""
        return self._done >= max(self._lengths, default=0)

    def advance(self) -> PrefillOutcome | None:
        """Run one chunk; says how it went where the draft took it in."""
        batch, start, lengths = self.batch, self._done, self._lengths
        size = min(chunk_size(self._chunk, len(batch.rows), batch.cache.length), max(lengths) - start)
        text = [row.request.prompt[start : start + size + 1] for row in batch.rows]
        padded = [[*part, *[0] * (size + 1 - len(part))] for part in text]
        tokens = torch.tensor(padded, device=batch.root.device)
        hidden = self._run(tokens[:, :-1])
        batch.cache.commit([min(max(length - start, 0), size) for length in lengths])
        self._done = start + size
        if batch.session is None:
            return None
        paired = [min(max(length - 1 - start, 0), size) for length in lengths]
        outcome, started = None, time.perf_counter()
        if self._drafts:
            batch.session.commit(hidden, tokens[:, 1:], paired)
            outcome = PrefillOutcome(len(lengths) * size, time.perf_counter() - started)
        else:
            batch.pending.append(hidden, tokens[:, 1:], paired)
        self._keep_last(hidden, [length - 1 - start for length in lengths])
        return outcome

    @property
    def _lengths(self) -> list[int]:
        return [len(row.request.prompt) - 1 for row in self.batch.rows]

    def _run(self, tokens: Tensor) -> Tensor:
        cache, size = self.batch.cache, tokens.shape[1]
        positions = cache.positions(size)
        cache.begin(size)
        return self._target.forward(tokens, positions, cache, None, self._hidden_state).read

    def _keep_last(self, hidden: Tensor, last: list[int]) -> None:
        """Leave for the draft what this chunk has of the rows' last positions, `last` counted from its start."""
        here = [0 <= place < hidden.shape[1] for place in last]
        left = torch.zeros_like(hidden[:, :1])
        for row, place in enumerate(last):
            if here[row]:
                left[row, 0] = hidden[row, place]
        self.batch.pending.append(left, self.batch.root.unsqueeze(1), list(map(int, here)))
