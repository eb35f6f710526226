"""Choose the texts that are held out of a training, to measure the draft on: a share, chosen by their content."""

from __future__ import annotations

from dataclasses import dataclass

from clover.data.batching import windows
from clover.data.chat import Sample
from clover.data.formats import Record
from clover.data.texts import Texts
from clover.errors import UserError

_MOST_TRIED = 1024  # texts that are tokenized to find some that can be measured and learnt


@dataclass(frozen=True)
class HeldOut:
    """A rule that holds texts out by their hash, so that equal texts are on the same side.

    Args:
        share: the share (0 … 1) of texts that are held out.
        only: the hash of a single text that is held out instead of the share.
    """

    share: float
    only: bytes | None = None

    def __call__(self, text: Record | Sample) -> bool:
        """Return True if a text is held out."""
        return self.contains(text.digest())

    def contains(self, digest: bytes) -> bool:
        """Return True if texts with this hash are held out."""
        if self.only is not None:
            return digest == self.only
        return int.from_bytes(digest[:8], "big") / 2**64 < self.share


def choose_held_out(texts: Texts, share: float, max_length: int) -> HeldOut | None:
    """Return the rule for a share of the texts, or for the text of the lowest hash if the share holds none.

    Only texts count that give a window of at most `max_length` tokens with something to learn. The result is None if
    nothing is to be held out, or nothing would be left to learn. A share of 1 holds all texts out, and none is read.
    Texts are read once, and only until the answer is known: a share holds the lowest hashes, so one text below it
    settles that it is not empty. If a thousand texts give nothing, the training says what is wrong with them.
    """
    if share == 1:
        return HeldOut(share)
    held, lowest, learnt, tried = HeldOut(share), list[bytes](), False, 0
    for text in texts.read(range(len(texts))) if share else ():
        digest = b"" if text is None else text.digest()
        low = len(lowest) < 2 or digest < lowest[1]
        if text is None or digest in lowest or not (low or (not learnt and not held.contains(digest))):
            continue
        tried += 1
        if _gives_windows(texts, text, max_length):
            learnt = learnt or not held.contains(digest)
            lowest = sorted([*lowest, digest])[:2]
        if tried == _MOST_TRIED or (learnt and held.contains(lowest[0])):
            break
    if not learnt:
        return None
    if tried == _MOST_TRIED or held.contains(lowest[0]):
        return held
    return HeldOut(share, only=lowest[0]) if len(lowest) == 2 else None


def _gives_windows(texts: Texts, text: Record | Sample, max_length: int) -> bool:
    """Return True if something can be learnt from a text."""
    try:
        samples = texts.encode([text])
    except UserError:  # if no text can be used, the training says so
        return False
    return any(True for sample in samples for _ in windows(sample, max_length))
