"""The lm_head as a draft uses it: the target's own, or a copy of some of its rows.

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


class WholeHead(nn.Module):
    """All rows of a linear layer: nothing of its own, but another place, where a draft's products may be rounded.

    Args:
        linear: weight [V, H] and maybe a bias [V].
    """

    def __init__(self, linear: Any):
        super().__init__()
        # In a tuple the layer is no part of the draft, and is neither moved nor saved with it.
        self._linear = (linear,)

    @property
    def linear(self) -> Any:
        """The layer itself."""
        return self._linear[0]

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.linear, "bias", None)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] to [..., V]."""
        return self.linear(hidden)
