"""Which texts are held out of a training, to be measured on: a share of them, by their content."""

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
    """Decides by a hash of a text whether it is held out, so that equal texts are on the same side.

    Args:
        share: the share (0 … 1) of texts that are held out.
        only: in place of the share, the hash of the one text that is.
    """

    share: float
    only: bytes | None = None

    def __call__(self, text: Record | Sample) -> bool:
        """Return whether a text is held out."""
        return self.contains(text.digest())

    def contains(self, digest: bytes) -> bool:
        """Return whether texts with this hash are held out."""
        if self.only is not None:
            return digest == self.only
        return int.from_bytes(digest[:8], "big") / 2**64 < self.share


def choose_held_out(texts: Texts, share: float, max_length: int) -> HeldOut | None:
    """Return what is held out: a share of the texts, or the one of the lowest hash where the share holds none.

    Texts count that give a window of `max_length` tokens at most with something to learn. None where nothing is to be
    held out, or nothing would be left to learn. The texts are read once, and no further than it takes: a share holds
    the lowest hashes, so it holds one that counts as soon as the lowest hash is below it. Where a thousand texts give
    nothing, the learning says what is wrong with them. A share of 1 holds all texts out, and none is read.
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
    """Return whether something can be learnt of a text."""
    try:
        samples = texts.encode([text])
    except UserError:  # it cannot be used; if that is true of all, learning them says so
        return False
    return any(True for sample in samples for _ in windows(sample, max_length))
