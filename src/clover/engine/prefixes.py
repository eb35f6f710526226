"""Beginnings of texts that need not run again: the earlier turns of a conversation, and a store of texts that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from clover.drafts import DraftSession
from clover.engine.batch import Batch
from clover.engine.uncommitted import joined
from clover.target import TargetSession

_FEWEST = 16  # a shared beginning with fewer tokens is not worth a copy


@dataclass
class PrefixCache:
    """The committed tokens of a conversation, and what the target and the draft remember of them."""

    tokens: list[int] = field(default_factory=list)
    target: TargetSession | None = None
    draft: DraftSession | None = None

    def shared_length(self, prompt: Sequence[int]) -> int:
        """Return how many tokens at the start of `prompt` need no prefill.

        The draft pairs each position with the token after it; of the prompt the last token is the root, and the one
        before is run for its hidden state.
        """
        agreeing = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            agreeing += 1
        cached = [one.lengths[0] for one in (self.target, self.draft) if one is not None]
        return max(min([agreeing - 1, len(prompt) - 2, *cached]), 0)

    def take(self, prompt: Sequence[int]) -> PrefixCache:
        """Return the sessions, cut to what `prompt` shares; this object is empty until they are brought back.

        A turn that begins while another runs must not write into the sessions of that one.
        """
        shared, target, draft = self.shared_length(prompt), self.target, self.draft
        if target is not None:
            target.crop([shared])
            shared = target.lengths[0]
        if draft is not None:
            draft.crop([shared])
        taken = PrefixCache(self.tokens[:shared], target, draft)
        self.tokens, self.target, self.draft = [], None, None
        return taken


class Prefix(NamedTuple):
    """The first `length` tokens of a stored text."""

    kept: PrefixCache
    length: int

    def fill(self, batch: Batch, row: int) -> int:
        """Copy them into an empty row of a batch; return how many tokens the target could use."""
        assert self.kept.target is not None
        batch.target.fill_row(row, self.kept.target, self.length)
        length = batch.target.lengths[row]
        if batch.draft is not None and self.kept.draft is not None:
            batch.draft.fill_row(row, self.kept.draft, length)
        return length


class PrefixStore:
    """The turns of conversations that ended last, as many as fit into `most_bytes`.

    A text is copied when its sequence leaves the batch, and again when a request continues it, so that the store shares
    no memory with what runs. A later turn replaces the earlier ones that it begins with.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: list[PrefixCache] = []  # the one that was used last at the end

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, prompt: Sequence[int]) -> Prefix | None:
        """Return what spares most of a prompt's prefill; None if that is not worth a copy."""
        found = [Prefix(kept, kept.shared_length(prompt)) for kept in self._kept]
        best = max(found, key=lambda prefix: prefix.length, default=None)
        if best is None or best.length < _FEWEST:
            return None
        self._kept.sort(key=lambda kept: kept is best.kept)
        return best

    def keep(self, batch: Batch, row: int) -> None:
        """Copy the text of a row, and forget what has not been used for longest if there is no more room.

        The draft commits what it has not yet of the text, since that would have to run again. A text that is larger
        than the store is not kept, and nothing is forgotten for it.
        """
        sequence = batch.sequences[row]
        tokens = [*sequence.request.prompt, *sequence.tokens]
        length = min(batch.target.lengths[row], len(tokens))
        if batch.target.row_bytes(length) > self.most_bytes:  # a copy may be gigabytes
            return
        target, draft = batch.target.copy_row(row, length), None
        if batch.draft is not None:
            draft = batch.draft.copy_row(row)
            chunk = batch.limits.chunk(1, length)
            for part in joined(batch.uncommitted).rows([row]).split(chunk, chunk):
                draft.commit(*part)
        kept = PrefixCache(tokens, target, draft)
        if _bytes(kept) > self.most_bytes:
            return
        for earlier in [one for one in self._kept if one.tokens == tokens[: len(one.tokens)]]:
            self._forget(earlier)
        self._kept.append(kept)
        self.bytes += _bytes(kept)
        while self.bytes > self.most_bytes:
            self._forget(self._kept[0])

    def _forget(self, kept: PrefixCache) -> None:
        self._kept = [other for other in self._kept if other is not kept]
        self.bytes -= _bytes(kept)


def _bytes(kept: PrefixCache) -> int:
    """Return the bytes of a text's tensors; what a draft remembers outside its cache is little."""
    assert kept.target is not None
    of_draft = getattr(kept.draft, "cache", None)
    tensors: tuple[Tensor, ...] = () if of_draft is None else of_draft.storage
    return kept.target.row_bytes(kept.target.lengths[0]) + sum(tensor.nbytes for tensor in tensors)
