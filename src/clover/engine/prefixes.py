"""Texts that have ended, kept with their keys and values for requests that begin with the same tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from clover.engine.batch import Batch, PrefixCache

_FEWEST = 16  # tokens that are worth it


class Prefix(NamedTuple):
    """The first `length` tokens of a text that is kept."""

    kept: PrefixCache
    length: int

    def fill(self, batch: Batch, row: int) -> None:
        """Put them into an empty place."""
        assert self.kept.cache is not None
        batch.cache.fill_row(row, self.kept.cache, self.length)
        if batch.session is not None and self.kept.session is not None:
            batch.session.fill_row(row, self.kept.session, self.length)


class PrefixStore:
    """The turns of conversations that ended last, as many as fit into so many bytes.

    A text is copied when its sequence leaves the batch, and again when a request takes it up, so that the store shares
    no memory with what runs. A later turn takes the place of the earlier ones that it begins with.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: list[PrefixCache] = []  # the one that was used last at the end

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, prompt: Sequence[int]) -> Prefix | None:
        """What can spare most of a prompt's prefill; None if that is not worth it."""
        found = [Prefix(kept, kept.shared_length(prompt)) for kept in self._kept]
        best = max(found, key=lambda prefix: prefix.length, default=None)
        if best is None or best.length < _FEWEST:
            return None
        self._kept.sort(key=lambda kept: kept is best.kept)
        return best

    def keep(self, batch: Batch, row: int, most: int) -> None:
        """Copy the text at a place, and forget what has not been used for longest if there is no more room.

        The draft takes in what is pending of it, `most` positions at once: what it lacks would have to be run again. A
        text that is larger than the store is not kept, and nothing is forgotten for it.
        """
        sequence = batch.sequences[row]
        tokens = [*sequence.request.prompt, *sequence.tokens]
        length = min(batch.cache.lengths[row], len(tokens))
        if batch.cache.row_bytes(length) > self.most_bytes:  # a copy may be gigabytes
            return
        cache, session = batch.cache.copy_row(row, length), None
        if batch.session is not None:
            session = batch.session.copy_row(row)
            for part in batch.pending.copy_row(row).take(most):
                session.commit(*part)
        kept = PrefixCache(tokens, cache, session)
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
    """Of the tensors; drafts that keep something else keep little."""
    tensors: list[Tensor] = []
    for holder in (kept.cache, getattr(kept.session, "cache", None)):
        tensors += holder.storage if holder is not None else ()
    return sum(tensor.nbytes for tensor in tensors)
