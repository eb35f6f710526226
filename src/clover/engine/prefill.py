"""Run prompts chunk by chunk, before their sequences join the running batch.

Shapes: B batch, R sequences with prompt left, T tokens of a chunk, W width of the hidden states that the draft reads.
"""

from collections.abc import Sequence

import torch

from clover.engine.batch import Batch


def padded_size(left: Sequence[int], most: int, padding: int) -> int:
    """Return the longest chunk size with at most `padding` padding tokens: the rest of a prompt, or `most`.

    A chunk that is longer than the shortest prompt contains padding, but saves a forward.

    Args:
        left: tokens that each prompt has left, not all of them 0.
        padding: padding tokens that a chunk may contain, all sequences together.

    >>> padded_size([90, 40, 38], 64, padding=4), padded_size([90, 40, 38], 64, padding=0)
    (40, 38)
    """
    ends = sorted({min(count, most) for count in left if count})
    good = [end for end in ends if sum(max(end - count, 0) for count in left if count) <= padding]
    return good[-1]


class Prefill:
    """Runs all prompts of a batch except their last tokens.

    Neither model runs a finished prompt in later chunks. The draft leaves each prompt's last position uncommitted, so
    that every sequence has exactly one uncommitted position when decoding starts, or none if its prompt is a single
    token.

    Args:
        batch: sequences that have not run yet, sorted by the rest of their prompts, longest first.
        hidden_state: kind of the hidden states that the draft reads.
    """

    def __init__(self, batch: Batch, hidden_state: str):
        self.batch, self._hidden_state = batch, hidden_state

    @property
    def finished(self) -> bool:
        """Return True if the batch can decode."""
        return not any(self._left)

    @property
    def _left(self) -> list[int]:
        """Return for each prompt the number of tokens that have not run."""
        return [max(len(one.request.prompt) - 1 - one.prefilled, 0) for one in self.batch.sequences]

    def advance(self) -> None:
        """Run one chunk."""
        batch, left = self.batch, self._left
        rows = max(number for number, count in enumerate(left, start=1) if count)
        device, limits = batch.root.device, batch.limits
        most = limits.chunk(rows, max(one.prefilled for one in batch.sequences))
        size = padded_size(left, most, limits.padding_on(device))
        texts = [
            one.request.prompt[one.prefilled : one.prefilled + size + 1] for one in batch.sequences[:rows]
        ]
        tokens = torch.tensor([[*text, *[0] * (size + 1 - len(text))] for text in texts], device=device)
        with batch.target.first_rows(rows):
            output = batch.target.run(tokens[:, :-1], self._hidden_state, logits=False)
            batch.target.commit([min(count, size) for count in left[:rows]])
        for one in batch.sequences:
            one.prefilled += size
        if batch.draft is not None:
            hidden = output.draft_hidden_states
            (last,) = batch.uncommitted
            for row, count in enumerate(left):
                if 0 < count <= size:
                    last.hidden[row, 0], last.counts[row] = hidden[row, count - 1], 1
            with batch.draft.first_rows(rows):
                counts = [min(max(count - 1, 0), size) for count in left[:rows]]
                batch.draft.commit(hidden, tokens[:, 1:], counts)
