"""The lm_head as a draft uses it: the target's own, or some of its rows.

Shapes: V' rows taken, H hidden.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class HeadRows(nn.Module):
    """Rows of a linear layer. It is frozen, and is saved with no model.

    Some rows are a copy, side by side in memory. All of them are the layer's own weight, and the layer runs them.

    Args:
        linear: weight [V, H] and maybe a bias [V].
        tokens: Long [V'], the rows; None for all.

    Attributes:
        whole: the layer, where all of its rows are taken.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: Any, tokens: Tensor | None):
        super().__init__()
        chosen = slice(None) if tokens is None else tokens
        bias = getattr(linear, "bias", None)
        self.register_buffer("weight", linear.weight.detach()[chosen], persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach()[chosen], persistent=False)
        self._whole = (linear,) if tokens is None else ()  # a tuple: it is no part of this module

    @property
    def whole(self) -> Any | None:
        return self._whole[0] if self._whole else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] to [..., V']."""
        return self._whole[0](hidden) if self._whole else F.linear(hidden, self.weight, self.bias)
