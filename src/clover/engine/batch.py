"""The sequences that run together, and what a conversation keeps between turns. Shapes: B batch, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.cache import KVCache
from clover.drafts import DraftSession
from clover.engine.pending import Pending
from clover.engine.sequences import RunningSequence
from clover.sampling import Sampler


@dataclass
class Batch:
    """Sequences, in the same order everywhere. Each one's `root` Long [B] is its last committed token, not cached yet.

    `session` is the draft's side, None without one, and `pending` what it has not taken in. Without sequences the
    `sampler` means nothing.
    """

    sequences: list[RunningSequence]
    cache: KVCache
    session: DraftSession | None
    sampler: Sampler
    root: Tensor
    pending: Pending

    def catch_up(self, most: int) -> tuple[DraftSession, Tensor]:
        """Let the draft take in what is pending, in parts of `most` positions; its state and its logits [B, V]."""
        assert self.session is not None, "only a draft can catch up"
        first, *others = (self.session.commit(*part) for part in self.pending.take(most))
        return self.session, others[-1] if others else first

    def drop(self, dropped: Sequence[int]) -> None:
        """Take out the sequences at these places; the last one moves into the place of each."""
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
        """Take in the sequences of another batch, behind the own ones; what these have is not touched."""
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


@dataclass
class PrefixCache:
    """The committed tokens of a conversation and the caches that hold them."""

    tokens: list[int] = field(default_factory=list)
    cache: KVCache | None = None
    session: DraftSession | None = None

    def shared_length(self, prompt: Sequence[int]) -> int:
        """Tokens at the start of `prompt` that need no prefill.

        The draft pairs each position with the token after it; of the prompt the last token is the root, and the one
        before is run for its hidden state.
        """
        agreeing = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            agreeing += 1
        cached = [c.lengths[0] for c in (self.cache, self.session) if c is not None]
        return max(min([agreeing - 1, len(prompt) - 2, *cached]), 0)

    def take(self, prompt: Sequence[int]) -> PrefixCache:
        """Hand the caches over, with what `prompt` shares; nothing is kept until they are brought back.

        A turn that begins while another runs must not write into the caches of that one.
        """
        shared = self.shared_length(prompt)
        taken = PrefixCache(self.tokens[:shared], self.cache, self.session)
        self.tokens, self.cache, self.session = [], None, None
        for cache in (taken.cache, taken.session):
            if cache is not None:
                cache.crop([shared])
        return taken
