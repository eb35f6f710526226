"""Some rows of an lm_head, for a draft that proposes from a part of the vocabulary.

Shapes: V' rows taken, H hidden.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class HeadRows(nn.Module):
    """A copy of rows of a linear layer, side by side in memory. It is frozen, and is saved with no model.

    Args:
        linear: weight [V, H] and maybe a bias [V].
        tokens: Long [V'], the rows.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: Any, tokens: Tensor):
        super().__init__()
        bias = getattr(linear, "bias", None)
        self.register_buffer("weight", linear.weight.detach()[tokens], persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach()[tokens], persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] to [..., V']."""
        return F.linear(hidden, self.weight, self.bias)
