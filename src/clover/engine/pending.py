"""Positions that the target has run and the draft has not taken in yet.

While a draft is used these are the positions of the last step. Steps without it add theirs behind them, so that the
draft can catch up when it is used again.

Shapes: B batch, A positions of one step, W width of the hidden states that the draft reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_FIRST = 8  # positions that there is room for at the start; doubles when there are more


class Pending:
    """A different number of positions in each row, in the order of the text.

    Args:
        root: Long [B], each row's last token. A row without positions looks like one of zeros before it.
        room: rows that there is room for.
        width: W.
        dtype: of the hidden states.

    Attributes:
        counts: positions of each row.
    """

    def __init__(self, root: Tensor, room: int, width: int, dtype: torch.dtype):
        self._hidden = torch.zeros(room, _FIRST, width, dtype=dtype, device=root.device)
        self._next_tokens = root.new_zeros(room, _FIRST)
        self._next_tokens[: len(root), 0] = root
        self.counts = [0] * len(root)
        self._latest = [0] * len(root)  # how many of them came last

    @property
    def behind(self) -> int:
        """Positions that the draft has to take in beyond those of the last step, in the row that has most."""
        return max(a - b for a, b in zip(self.counts, self._latest, strict=True))

    @property
    def empty(self) -> bool:
        """Whether the draft has taken in everything."""
        return not any(self.counts)

    def append(self, hidden: Tensor, next_tokens: Tensor, counts: Sequence[int]) -> None:
        """Add the positions of one step.

        Args:
            hidden: [B, A, W].
            next_tokens: Long [B, A], the token that follows each position.
            counts: how many of the A positions of each row are real; the rest is padding at the end.
        """
        rows, width = next_tokens.shape
        self._make_room(max(self.counts) + width)
        start = self.counts[0]
        if self.counts.count(start) == rows:
            self._hidden[:rows, start : start + width] = hidden
            self._next_tokens[:rows, start : start + width] = next_tokens
        else:
            row, place = self._places(self.counts, width)
            self._hidden[row, place], self._next_tokens[row, place] = hidden, next_tokens
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        self._latest = [new or old for new, old in zip(counts, self._latest, strict=True)]

    def take(self, most: int, last: int | None = None) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Hand everything over, in parts of at most so many positions per row.

        Every row that has positions has at least one of them in the last part: what a draft says of a row is what it
        says after that part.

        Args:
            last: positions per row in the last part at most; `most` when left out.

        Yields:
            hidden [B, A, W], next_tokens Long [B, A] and counts, as for `append`.
        """
        left, last = self.counts, last or most
        rows, done = len(left), [0] * len(left)
        while max(left) > last:
            part = [max(min(most, count - 1), 0) for count in left]
            row, place = self._places(done, max(part))
            yield self._hidden[row, place], self._next_tokens[row, place], part
            done = [at + new for at, new in zip(done, part, strict=True)]
            left = [count - at for count, at in zip(self.counts, done, strict=True)]
        width = max(1, *left)
        if not any(done):
            yield self._hidden[:rows, :width], self._next_tokens[:rows, :width], left
        else:
            row, place = self._places(done, width)
            yield self._hidden[row, place], self._next_tokens[row, place], left
        self.counts, self._latest = [0] * rows, [0] * rows

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = self.counts.pop()
        latest = self._latest.pop()
        if row != len(self.counts):
            width = max(1, last)
            self._hidden[row, :width] = self._hidden[len(self.counts), :width]
            self._next_tokens[row, :width] = self._next_tokens[len(self.counts), :width]
            self.counts[row], self._latest[row] = last, latest

    def insert(self, other: Pending) -> None:
        """Take in the rows of another batch, behind the own ones."""
        first, rows = len(self.counts), len(other.counts)
        width = max(1, *other.counts)
        self._make_room(width)
        self._hidden[first : first + rows, :width] = other._hidden[:rows, :width]
        self._next_tokens[first : first + rows, :width] = other._next_tokens[:rows, :width]
        self.counts += other.counts
        self._latest += other._latest

    def _places(self, starts: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
        """Rows [B, 1] and places [B, width] from `starts` on; those behind the end are the last one."""
        device = self._hidden.device
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        return torch.arange(len(starts), device=device)[:, None], places.clamp(max=self._hidden.shape[1] - 1)

    def _make_room(self, length: int) -> None:
        rows, room, width = self._hidden.shape
        if length <= room:
            return
        room, held = max(length, 2 * room), slice(len(self.counts))
        hidden, next_tokens = self._hidden, self._next_tokens
        self._hidden, self._next_tokens = (
            hidden.new_zeros(rows, room, width),
            next_tokens.new_zeros(rows, room),
        )
        self._hidden[held, : hidden.shape[1]] = hidden[held]
        self._next_tokens[held, : hidden.shape[1]] = next_tokens[held]
