"""A store of finished texts, such as turns of a conversation, so that their prefixes need not run again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from clover.drafts import DraftSession
from clover.engine.batch import Batch
from clover.engine.uncommitted import joined
from clover.target import TargetSession


class StoredText(NamedTuple):
    """The committed tokens of a text, and the sessions of target and draft that hold them."""

    tokens: list[int]
    target: TargetSession
    draft: DraftSession | None

    @property
    def bytes(self) -> int:
        """Return the memory that the sessions use."""
        sessions = (self.target, self.draft) if self.draft is not None else (self.target,)
        return sum(one.row_bytes(one.lengths[0]) for one in sessions)

    def shared_length(self, prompt: Sequence[int]) -> int:
        """Return how many tokens at the start of `prompt` need no prefill.

        The last shared token is excluded, because the draft pairs each position with the token after it. The prompt's
        last two tokens are excluded: the last one is the root, and the hidden state of the other one is needed.
        """
        agreeing = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            agreeing += 1
        remembered = [one.lengths[0] for one in (self.target, self.draft) if one is not None]
        return max(min([agreeing - 1, len(prompt) - 2, *remembered]), 0)

    def fill(self, batch: Batch, row: int, length: int) -> int:
        """Copy the first `length` tokens into an empty row of a batch; return how many of them the target can reuse."""
        batch.target.fill_row(row, self.target, length)
        length = batch.target.lengths[row]
        if batch.draft is not None and self.draft is not None:
            batch.draft.fill_row(row, self.draft, length)
        return length


class PrefixStore:
    """The most recently used texts, as many as the limits allow.

    A text is copied when its sequence leaves the batch, and again when a request continues it, so that the store shares
    no memory with running sequences. A text replaces stored texts that are its prefixes, such as earlier turns.

    Args:
        most_bytes: the most bytes of all texts together.
        most_texts: the most texts.
        fewest: the fewest shared tokens that are worth a copy.
    """

    def __init__(self, most_bytes: int = sys.maxsize, most_texts: int = sys.maxsize, fewest: int = 16):
        self.most_bytes, self.most_texts, self.fewest = most_bytes, most_texts, fewest
        self.bytes = 0
        self._texts: list[StoredText] = []  # The last one was used most recently.

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, prompt: Sequence[int]) -> tuple[StoredText, int] | None:
        """Return the text that shares the longest prefix with a prompt, and its length; None if not worth a copy."""
        found = [(text, text.shared_length(prompt)) for text in self._texts]
        best = max(found, key=lambda pair: pair[1], default=None)
        if best is None or best[1] < self.fewest:
            return None
        self._texts.sort(key=lambda text: text is best[0])
        return best

    def keep(self, batch: Batch, row: int) -> None:
        """Copy the text of a row, and forget the least recently used texts if there is no room.

        The copied draft commits its uncommitted positions, because their hidden states are not stored. A text that is
        larger than the store is not kept, and nothing is forgotten for it.
        """
        sequence = batch.sequences[row]
        tokens = [*sequence.request.prompt, *sequence.tokens]
        length = min(batch.target.lengths[row], len(tokens))
        if batch.target.row_bytes(length) > self.most_bytes:  # A copy may take gigabytes.
            return
        target, draft = batch.target.copy_row(row, length), None
        if batch.draft is not None:
            draft = batch.draft.copy_row(row, batch.draft.lengths[row])
            chunk = batch.limits.chunk(1, length)
            for part in joined(batch.uncommitted).rows([row]).split(chunk, chunk):
                draft.commit(*part)
        text = StoredText(tokens, target, draft)
        if text.bytes > self.most_bytes:
            return
        for earlier in [one for one in self._texts if one.tokens == tokens[: len(one.tokens)]]:
            self._forget(earlier)
        self._texts.append(text)
        self.bytes += text.bytes
        while self.bytes > self.most_bytes or len(self) > self.most_texts:
            self._forget(self._texts[0])

    def _forget(self, text: StoredText) -> None:
        self._texts = [other for other in self._texts if other is not text]
        self.bytes -= text.bytes
