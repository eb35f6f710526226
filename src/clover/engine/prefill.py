"""Prompts on their way into the running batch.

Shapes: B batch, T tokens of a chunk, W width of the hidden states that the draft reads.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor
from torch.nn.functional import pad

from clover.drafts import DraftSession
from clover.engine.batch import Batch
from clover.engine.chunks import chunk_size, padded_size
from clover.target import TargetModel

# Positions that a chunk may give up to save a forward: as many as take about as long as one that reads the weights.
_PADDING = defaultdict(lambda: 256, cpu=64)


class Prefill:
    """Runs all prompts of a batch but for their last tokens, chunk by chunk.

    A row whose prompt has ended has no part in later chunks, and a chunk ends where one ends: prompts of different
    lengths take hardly more than as many tokens of one length.

    The draft takes in all of that but the last position, so that every row has exactly one position left for it when
    decoding starts; none if its prompt is a single token.

    Args:
        batch: rows that have not run yet, longest prompt first.
        target: runs them.
        hidden_state: kind of the hidden states that the draft reads.
        chunk: prompt tokens that are run at once per row; fewer of many rows and after a long text, which saves memory.
        done: tokens that the caches hold already.
    """

    def __init__(self, batch: Batch, target: TargetModel, hidden_state: str, chunk: int, done: int = 0):
        self.batch, self._target, self._hidden_state = batch, target, hidden_state
        self._chunk, self._done = chunk, done

    @property
    def finished(self) -> bool:
        """Whether the rows can decode."""
        return self._done >= max(self._lengths, default=0)

    def advance(self) -> None:
        """Run one chunk."""
        batch, start = self.batch, self._done
        left = [max(length - start, 0) for length in self._lengths]
        while not left[-1]:
            left.pop()
        size = padded_size(left, chunk_size(self._chunk, len(left), start), _PADDING[batch.root.device.type])
        text = [row.request.prompt[start : start + size + 1] for row in batch.sequences]
        padded = [[*part, *[0] * (size + 1 - len(part))] for part in text]
        tokens = torch.tensor(padded, device=batch.root.device)
        with batch.cache.first_rows(len(left)):
            hidden = self._run(tokens[: len(left), :-1])
            batch.cache.commit([min(count, size) for count in left])
        self._done = start + size
        if batch.session is not None:
            self._leave(batch.session, hidden, tokens[:, 1:])

    def _leave(self, session: DraftSession, hidden: Tensor, next_tokens: Tensor) -> None:
        """Give the draft what a chunk found: hidden states [R, T, W] of the R rows that ran, next tokens [B, T]."""
        rows, size = next_tokens.shape
        hidden = pad(hidden, (0, 0, 0, 0, 0, rows - len(hidden)))
        start = self._done - size
        last = [length - 1 - start for length in self._lengths]
        paired = [min(max(place, 0), size) for place in last]
        session.commit(hidden, next_tokens, paired)
        self._keep_last(hidden, last)

    @property
    def _lengths(self) -> list[int]:
        return [len(row.request.prompt) - 1 for row in self.batch.sequences]

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
