"""The sequences that run together and all that is kept of them. Shapes: B batch, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.cache import KVCache
from clover.drafts import DraftSession
from clover.engine.pending import Pending
from clover.engine.sequences import RunningSequence
from clover.sampling import Sampler


@dataclass
class Batch:
    """Rows, in the same order everywhere. Row b's root is its last committed token, which is not cached yet.

    Attributes:
        sequences: the host's side.
        cache: the target's keys and values.
        session: the draft's side; None without a draft.
        sampler: how the rows' tokens are chosen; without rows it means nothing.
        root: Long [B].
        pending: what the draft has not taken in; without a draft nothing is put there.
    """

    sequences: list[RunningSequence]
    cache: KVCache
    session: DraftSession | None
    sampler: Sampler
    root: Tensor
    pending: Pending

    def catch_up(self, most: int) -> tuple[DraftSession, Tensor]:
        """Let the draft take in what is pending, so many positions per row at once; its state and its logits [B, V]."""
        assert self.session is not None, "only a draft can catch up"
        first, *others = (self.session.commit(*part) for part in self.pending.take(most))
        return self.session, others[-1] if others else first

    def drop(self, dropped: Sequence[int]) -> None:
        """Take rows out; the last row moves into the place of each."""
        if not dropped:
            return
        kept = list(range(len(self.sequences)))
        for row in sorted(dropped, reverse=True):
            kept[row] = kept[-1]
            kept.pop()
            self.cache.drop(row)
            if self.session is not None:
                self.session.drop(row)
        self.sequences = [self.sequences[row] for row in kept]
        if kept:
            self.sampler.select(kept)
        self.pending.select(kept)
        self.root = self.root[torch.tensor(kept, dtype=torch.long, device=self.root.device)]

    def insert(self, other: Batch) -> None:
        """Take in the rows of another batch, behind the own ones; what these have is not touched."""
        if not other.sequences:
            return
        if not self.sequences:
            self.sampler = other.sampler
        else:
            self.sampler.insert(other.sampler)
        self.cache.insert(other.cache)
        if self.session is not None and other.session is not None:
            self.session.insert(other.session)
        self.pending.insert(other.pending)
        self.sequences += other.sequences
        self.root = torch.cat((self.root, other.root))
