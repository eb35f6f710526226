"""What a recurrent step computes of a token alone, made once for every token of the vocabulary.

Keys, values and halves of products that read the embedding alone do not depend on the text. With a small vocabulary
there is room for all of them, and a depth of the tree costs a look-up instead of several products.

Shapes: V the target's vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MAX_BYTES = 2**26


class TokenTable(nn.Module):
    """Parts of every token, side by side.

    Args:
        parts: each [V, width].
    """

    def __init__(self, parts: Sequence[Tensor]):
        super().__init__()
        self.sizes = [part.shape[1] for part in parts]
        self.register_buffer("table", torch.cat(list(parts), dim=-1), persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """The parts of tokens Long [...], each [..., width]."""
        return self.get_buffer("table")[tokens].split(self.sizes, dim=-1)


def has_room(rows: Tensor, width: int) -> bool:
    """Whether a table of so many columns for embeddings [V, H] stays within 64 MiB."""
    return len(rows) * width * rows.element_size() <= _MAX_BYTES
