"""Positions that the target has run and the draft has not taken in yet, after steps without it several per sequence.

Shapes: B batch, A positions of one step, W width of the hidden states that the draft reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Positions(NamedTuple):
    """Positions of every sequence, as a draft takes them in: of row b the first counts[b] are real, others padding.

    `hidden` is [B, A, W], `next_tokens` Long [B, A] the token that follows each position.
    """

    hidden: Tensor
    next_tokens: Tensor
    counts: list[int]

    def part(self, starts: Sequence[int], counts: list[int]) -> Positions:
        """The positions of each sequence b from `starts[b]` on, `counts[b]` of them."""
        width = max(1, *counts)
        if not any(starts):
            return Positions(self.hidden[:, :width], self.next_tokens[:, :width], counts)
        places = [[min(start + at, self.hidden.shape[1] - 1) for at in range(width)] for start in starts]
        return self.at(places, counts)

    def at(self, places: Sequence[Sequence[int]], counts: list[int]) -> Positions:
        """The positions of each sequence that stand at these places."""
        index = torch.tensor(places, device=self.hidden.device)
        rows = torch.arange(len(places), device=index.device)[:, None]
        return Positions(self.hidden[rows, index], self.next_tokens[rows, index], counts)


class Pending:
    """The positions that wait, in the order of the text; their number differs by sequence.

    `root` Long [B] are the last tokens of sequences that have no such position yet.
    """

    def __init__(self, root: Tensor, width: int, dtype: torch.dtype):
        hidden = torch.zeros(len(root), 1, width, dtype=dtype, device=root.device)
        self._steps = [Positions(hidden, root.unsqueeze(1), [0] * len(root))]
        self._counts, self._latest = [0] * len(root), [0] * len(root)  # of each: in all, and in the last step

    @property
    def behind(self) -> int:
        """Positions that the draft has to take in beyond those of the last step, in the sequence that has most."""
        return max(own - last for own, last in zip(self._counts, self._latest, strict=True))

    @property
    def empty(self) -> bool:
        """Whether the draft has taken in everything."""
        return not self._steps

    def put(self, row: int, hidden: Tensor) -> None:
        """Give a new sequence the hidden states [W] of the position before its root."""
        self._steps[0].hidden[row, 0] = hidden
        self._steps[0].counts[row] = self._counts[row] = self._latest[row] = 1

    def append(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> None:
        """Add the positions of one step, at least one of each sequence; see `Positions`."""
        self._steps.append(Positions(hidden, next_tokens, counts))
        self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]
        self._latest = counts

    def take(self, most: int, last: int | None = None) -> Iterator[Positions]:
        """Hand everything over, in parts of at most `most` positions each, the last one of at most `last`.

        Every sequence that has positions has one in the last part: what a draft says of it is what it says after that
        part.
        """
        whole, last = self._merged(), last or most
        left, done = whole.counts, [0] * len(whole.counts)
        self._steps, self._counts = [], [0] * len(left)
        while max(left) > last:
            part = [max(min(most, count - 1), 0) for count in left]
            yield whole.part(done, part)
            done = [at + new for at, new in zip(done, part, strict=True)]
            left = [count - new for count, new in zip(left, part, strict=True)]
        yield whole.part(done, left)

    def copy_row(self, row: int) -> Pending:
        """The positions of one sequence, by themselves."""
        hidden, next_tokens, counts = self._merged()
        copied = Pending(next_tokens[row : row + 1, 0], hidden.shape[-1], hidden.dtype)
        copied.append(hidden[row : row + 1], next_tokens[row : row + 1], counts[row : row + 1])
        return copied

    def select(self, rows: Sequence[int]) -> None:
        """Keep these sequences, in this order."""
        hidden, next_tokens, counts = self._merged()
        index = torch.tensor(rows, dtype=torch.long, device=hidden.device)
        self._steps = [Positions(hidden[index], next_tokens[index], [counts[row] for row in rows])]
        self._counts, self._latest = self._steps[0].counts, [self._latest[row] for row in rows]

    def insert(self, other: Pending) -> None:
        """Take in those of another batch, behind the own ones."""
        parts = self._merged(), other._merged()
        width = max(part.hidden.shape[1] for part in parts)
        hidden = [pad(part.hidden, (0, 0, 0, width - part.hidden.shape[1])) for part in parts]
        next_tokens = [pad(part.next_tokens, (0, width - part.hidden.shape[1])) for part in parts]
        self._counts = [*parts[0].counts, *parts[1].counts]
        self._steps = [Positions(torch.cat(hidden), torch.cat(next_tokens), self._counts)]
        self._latest = [*self._latest, *other._latest]

    def _merged(self) -> Positions:
        """All steps as one."""
        if len(self._steps) == 1:
            return self._steps[0]
        places: list[list[int]] = [[] for _ in self._counts]
        start = 0
        for step in self._steps:
            for own, count in zip(places, step.counts, strict=True):
                own += range(start, start + count)
            start += step.hidden.shape[1]
        padded = [own + [0] * (max(self._counts) - len(own)) for own in places]
        hidden = torch.cat([step.hidden for step in self._steps], dim=1)
        next_tokens = torch.cat([step.next_tokens for step in self._steps], dim=1)
        return Positions(hidden, next_tokens, self._counts).at(padded, self._counts)
