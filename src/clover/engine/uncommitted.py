"""Positions that the target has run and the draft has not committed. After plain steps a sequence has several.

Shapes: B batch, A positions, W width of the hidden states that the draft reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Uncommitted(NamedTuple):
    """Consecutive positions of every sequence. Row b has `counts[b]` positions, then padding.

    Attributes:
        hidden: [B, A, W], the target's hidden states.
        next_tokens: Long [B, A], the token that follows each position.
        counts: positions of each row.
    """

    hidden: Tensor
    next_tokens: Tensor
    counts: list[int]

    def rows(self, rows: Sequence[int]) -> Uncommitted:
        """Return these rows, in this order."""
        index = torch.tensor(rows, dtype=torch.long, device=self.hidden.device)
        return Uncommitted(self.hidden[index], self.next_tokens[index], [self.counts[row] for row in rows])

    def above(self, other: Uncommitted) -> Uncommitted:
        """Return the rows of both, with the rows of `other` last."""
        width = max(self.hidden.shape[1], other.hidden.shape[1])
        hidden = [pad(one.hidden, (0, 0, 0, width - one.hidden.shape[1])) for one in (self, other)]
        tokens = [pad(one.next_tokens, (0, width - one.hidden.shape[1])) for one in (self, other)]
        return Uncommitted(torch.cat(hidden), torch.cat(tokens), [*self.counts, *other.counts])

    def split(self, chunk: int, last: int) -> Iterator[Uncommitted]:
        """Cut into parts of at most `chunk` positions per row; the last part has at most `last`.

        Every row with positions has one in the last part, because the draft proposes tokens after its last position.
        """
        starts, left = [0] * len(self.counts), self.counts
        while max(left) > last:
            counts = [max(min(chunk, count - 1), 0) for count in left]
            yield self._part(starts, counts)
            starts = [start + count for start, count in zip(starts, counts, strict=True)]
            left = [count - done for count, done in zip(left, counts, strict=True)]
        yield self._part(starts, left)

    def _part(self, starts: Sequence[int], counts: list[int]) -> Uncommitted:
        """Return `counts[b]` positions of each row from `starts[b]` on."""
        width = max(1, *counts)
        if not any(starts):
            return Uncommitted(self.hidden[:, :width], self.next_tokens[:, :width], counts)
        most = self.hidden.shape[1] - 1
        return self._at([[min(start + at, most) for at in range(width)] for start in starts], counts)

    def _at(self, places: Sequence[Sequence[int]], counts: list[int]) -> Uncommitted:
        """Return the positions at `places[b]` of each row."""
        index = torch.tensor(places, device=self.hidden.device)
        rows = torch.arange(len(places), device=index.device)[:, None]
        return Uncommitted(self.hidden[rows, index], self.next_tokens[rows, index], counts)


def joined(parts: Sequence[Uncommitted]) -> Uncommitted:
    """Join parts that follow one another in the text, without padding between a row's positions."""
    if len(parts) == 1:
        return parts[0]
    places: list[list[int]] = [[] for _ in parts[0].counts]
    start = 0
    for part in parts:
        for row, count in zip(places, part.counts, strict=True):
            row += range(start, start + count)
        start += part.hidden.shape[1]
    counts = list(map(len, places))
    whole = Uncommitted(
        torch.cat([part.hidden for part in parts], dim=1),
        torch.cat([part.next_tokens for part in parts], dim=1),
        counts,
    )
    return whole._at([row + [0] * (max(counts) - len(row)) for row in places], counts)
