"""Prompts on their way into the running batch, and how many positions are run at once.

Shapes: B batch, R sequences with prompt left, T tokens of a chunk, W width of the hidden states that the draft reads.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch

from clover.engine.batch import Batch
from clover.target import TargetModel

_MOST_MASKED = 2**22  # entries of the mask of one chunk: a few MiB, whatever the context
_MOST_TOKENS = 2048  # of one chunk, all sequences together: more give no speed and take memory
_FEWEST = 16  # tokens of a chunk per sequence
# Positions that a chunk may give up to save a forward: as many as take about as long as one that reads the weights.
_PADDING = defaultdict(lambda: 256, cpu=64)


def chunk_size(chunk: int, sequences: int, length: int) -> int:
    """Positions per sequence, at most `chunk`; fewer of many and after a long text (`length`), which saves memory."""
    most = min(_MOST_MASKED // (sequences * (length + chunk)), _MOST_TOKENS // sequences)
    return min(chunk, max(most, _FEWEST))


def padded_size(left: Sequence[int], most: int, padding: int) -> int:
    """Positions per sequence of a chunk, which ends where a prompt ends unless it has `most`.

    A chunk that is longer than the shortest prompt gives up positions to save a forward.

    Args:
        left: positions of each sequence, not all of them 0.
        padding: positions that may be given up, all sequences together.

    >>> padded_size([90, 40, 38], 64, padding=4), padded_size([90, 40, 38], 64, padding=0)
    (40, 38)
    """
    ends = sorted({min(count, most) for count in left if count})
    good = [end for end in ends if sum(max(end - count, 0) for count in left if count) <= padding]
    return good[-1]


class Prefill:
    """Runs all prompts of a batch but for their last tokens, chunk by chunk.

    A prompt that has ended has no part in later chunks, neither in the target nor in the draft. The draft takes in all
    but each prompt's last position, so that every sequence has exactly one left for it when decoding starts; none if
    its prompt is a single token.

    Args:
        batch: sequences that have not run yet; those with most of their prompt left come first.
        chunk: prompt tokens that are run at once per sequence, at most (`chunk_size`).
    """

    def __init__(self, batch: Batch, target: TargetModel, hidden_state: str, chunk: int):
        self.batch, self._target, self._hidden_state, self._chunk = batch, target, hidden_state, chunk

    @property
    def finished(self) -> bool:
        """Whether the batch can decode."""
        return not any(self._left)

    @property
    def _left(self) -> list[int]:
        """Tokens of each prompt that have not run."""
        return [max(len(one.request.prompt) - 1 - one.prefilled, 0) for one in self.batch.sequences]

    def advance(self) -> None:
        """Run one chunk."""
        batch, left = self.batch, self._left
        rows = max(number for number, count in enumerate(left, start=1) if count)
        device = batch.root.device
        most = chunk_size(self._chunk, rows, max(one.prefilled for one in batch.sequences))
        size = padded_size(left, most, _PADDING[device.type])
        running = batch.sequences[:rows]
        text = [one.request.prompt[one.prefilled : one.prefilled + size + 1] for one in running]
        tokens = torch.tensor([[*part, *[0] * (size + 1 - len(part))] for part in text], device=device)
        with batch.cache.first_rows(rows):
            # padding may reach beyond the last position that the target knows
            positions = batch.cache.positions(size).clamp(max=self._target.longest_run - 1)
            batch.cache.begin(size)
            hidden = self._target.forward(
                tokens[:, :-1], positions, batch.cache, None, self._hidden_state
            ).read
            batch.cache.commit([min(count, size) for count in left[:rows]])
        for one in batch.sequences:
            one.prefilled += size
        if batch.session is not None:
            for row, count in enumerate(left):
                if 0 < count <= size:
                    batch.pending.put(row, hidden[row, count - 1])
            with batch.session.first_rows(rows):
                counts = [min(max(count - 1, 0), size) for count in left[:rows]]
                batch.session.commit(hidden, tokens[:, 1:], counts)
