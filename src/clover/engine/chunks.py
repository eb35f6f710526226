"""How many positions are run at once: of a prompt by the target, of what is pending by the draft."""

from __future__ import annotations

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
