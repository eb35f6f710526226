"""What one turn of a conversation leaves for the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clover.cache import KVCache
from clover.drafts import DraftSession


@dataclass
class PrefixCache:
    """The committed tokens of a conversation and the caches that hold them."""

    tokens: list[int] = field(default_factory=list)
    cache: KVCache | None = None
    session: DraftSession | None = None

    def shared_length(self, prompt: Sequence[int]) -> int:
        """Tokens at the start of `prompt` that need no prefill.

        One less than agree: the draft pairs each position with the token after it, and that one must agree too. And
        two less than the prompt has: its last token is the root, the one before is run for its hidden state.
        """
        agreeing = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            agreeing += 1
        cached = [c.lengths[0] for c in (self.cache, self.session) if c is not None]
        return max(min([agreeing - 1, len(prompt) - 2, *cached]), 0)

    def crop(self, prompt: Sequence[int]) -> int:
        """Forget all that `prompt` does not share; returns how many tokens are left."""
        shared = self.shared_length(prompt)
        self.tokens = self.tokens[:shared]  # whatever fails from here on, they describe the caches
        for cache in (self.cache, self.session):
            if cache is not None:
                cache.crop([shared])
        return shared
