"""The random numbers by which sequences choose their next tokens.

Shapes: B batch, N tree nodes, V tokens, R positions with stored numbers per sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from clover.sampling.numbers import gumbels

CHOICE = 2  # the code of this use of numbers that are hashed from a sequence's seed


class GumbelCache:
    """Standard Gumbel numbers of tokens Long [V] at the next positions of each sequence; 0 for greedy sequences.

    Hashing is slow on a CPU. The numbers of positions that a sequence has not reached are therefore stored there, so
    that a tree deeper than its accepted path costs no more than the path. On other devices all numbers are hashed in
    each step, because the host would have to wait for the sequences' lengths. `keeps` overrides this choice.
    """

    def __init__(self, seeds: Tensor, greedy: Sequence[bool], tokens: Tensor, keeps: bool | None = None):
        self._tokens, self._keeps = tokens, tokens.device.type == "cpu" if keeps is None else keeps
        self._set_rows(seeds, greedy)
        self._ends = [0] * len(greedy)  # each sequence's first position without a hash
        empty = (len(seeds), 0, len(tokens))
        self._numbers = torch.zeros(empty, dtype=torch.float32, device=tokens.device)  # [B, R, V]
        self._slots = torch.zeros_like(seeds)  # the place of each sequence's numbers of depth 0
        self._together: int | None = 0  # this place, if all sequences have the same one
        self.ready = 0  # the number of depths that are hashed for this step

    def _set_rows(self, seeds: Tensor, greedy: Sequence[bool]) -> None:
        self._seeds, self._greedy = seeds, greedy
        self._is_greedy = torch.tensor(greedy, device=seeds.device)[:, None, None]

    def advance(self) -> None:
        """Forget which depths are ready, because positions change after a step."""
        self.ready = 0

    def prepare(self, positions: Tensor, depths: int) -> None:
        """Hash the missing numbers of `depths` depths, from each sequence's next token on, at `positions` Long [B]."""
        if depths <= self.ready:
            return
        if self._keeps:
            self._hash_missing(positions, depths)
        else:
            ahead = torch.arange(depths, device=positions.device)
            at = (positions.unsqueeze(1) + ahead).unsqueeze(2)
            numbers = gumbels(self._seeds[:, None, None], CHOICE, at, self._tokens)
            self._numbers = numbers.masked_fill_(self._is_greedy, 0.0)
            self._slots, self._together = torch.zeros_like(self._seeds), 0
        self.ready = depths

    def _hash_missing(self, positions: Tensor, depths: int) -> None:
        starts = positions.tolist()
        if depths > self._numbers.shape[1]:
            self._numbers = self._numbers.new_zeros(len(starts), depths, len(self._tokens))
            self._ends = [0] * len(starts)
        room = self._numbers.shape[1]
        rows = zip(starts, self._ends, self._greedy, strict=True)
        missing = [
            (row, position)
            for row, (start, end, greedy) in enumerate(rows)
            if not greedy
            for position in range(max(start, end), start + depths)
        ]
        if missing:
            row, at = torch.tensor(missing, device=self._seeds.device).T
            self._numbers[row, at % room] = gumbels(self._seeds[row, None], CHOICE, at[:, None], self._tokens)
        self._ends = [max(end, start + depths) for start, end in zip(starts, self._ends, strict=True)]
        self._slots = positions % room
        first = {start % room for start in starts}
        self._together = first.pop() if len(first) == 1 else None

    def of_depth(self, depth: int) -> Tensor:
        """Return the prepared numbers of the tokens after nodes at a depth, float32 [B, 1, V]."""
        if self._together is not None:
            slot = (self._together + depth) % self._numbers.shape[1]
            return self._numbers[:, slot : slot + 1]
        return self.of_nodes(torch.full_like(self._slots, depth).unsqueeze(1))

    def of_nodes(self, depths: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the numbers of nodes at depths Long [B, N] or [1, N]: float32 [B, N, V], or [B, N, W] as `index`."""
        rows = torch.arange(len(self._slots), device=depths.device).unsqueeze(1)
        slots = (self._slots.unsqueeze(1) + depths) % self._numbers.shape[1]
        if index is None:
            return self._numbers[rows, slots]
        return self._numbers[rows.unsqueeze(2), slots.unsqueeze(2), index]

    def select(self, rows: Sequence[int], seeds: Tensor, greedy: Sequence[bool]) -> None:
        """Keep these sequences, in this order; the caller passes their `seeds` and `greedy` again."""
        self.ready = 0
        self._numbers = self._numbers[torch.tensor(rows, dtype=torch.long, device=seeds.device)]
        self._ends = [self._ends[row] for row in rows]
        self._set_rows(seeds, greedy)

    def insert(self, seeds: Tensor, greedy: Sequence[bool]) -> None:
        """Append new sequences; `seeds` and `greedy` are those of all sequences."""
        self.ready, more = 0, len(seeds) - len(self._ends)
        self._numbers = pad(self._numbers, (0, 0, 0, 0, 0, more))
        self._ends += [0] * more
        self._set_rows(seeds, greedy)
