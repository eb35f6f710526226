"""How many positions are run at once: of a prompt by the target, of what is pending by the draft."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_MASKED = 2**22  # entries of the mask of one chunk: a few MiB, whatever the context
_MOST_TOKENS = 2048  # of one chunk, all rows together: more give no speed and take memory
_FEWEST = 16  # tokens of a chunk per row


def chunk_size(chunk: int, rows: int, length: int) -> int:
    """Positions per row, at most `chunk`; fewer of many rows and after a long text, which saves memory.

    Args:
        length: positions that the longest row has already.
    """
    most = min(_MOST_MASKED // (rows * (length + chunk)), _MOST_TOKENS // rows)
    return min(chunk, max(most, _FEWEST))


def padded_size(left: Sequence[int], most: int, padding: int) -> int:
    """Positions per row of a chunk of rows of different length, which ends where a row ends unless it has `most`.

    Rows that have ended need not run in the next chunk, so a chunk that is longer than the shortest row gives up
    positions to save a forward.

    Args:
        left: positions of each row, not all of them 0.
        most: of one row in the chunk.
        padding: positions that may be given up, all rows together.

    >>> padded_size([90, 40, 38], 64, padding=4), padded_size([90, 40, 38], 64, padding=0)
    (40, 38)
    """
    ends = sorted({min(count, most) for count in left if count})
    good = [end for end in ends if sum(max(end - count, 0) for count in left if count) <= padding]
    return good[-1]
