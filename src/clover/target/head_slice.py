"""The lm_head as a draft uses it: the target's own, or some of its rows.

Shapes: V' rows taken, H hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from clover.target.fast_linear import fast_linear, linear_of


class HeadSlice(nn.Module):
    """Rows of a linear layer. They are frozen, belong to the target, and are neither moved nor saved with the draft.

    Args:
        linear: weight [V, H] and maybe a bias [V].
        tokens: Long [V'], the rows, copied side by side; None for the layer itself.
    """

    def __init__(self, linear: nn.Linear, tokens: Tensor | None = None):
        super().__init__()
        if tokens is not None:
            bias = linear.bias
            linear = linear_of(linear.weight[tokens], None if bias is None else bias[tokens])
        self._linear = (linear,)  # in a tuple it is no part of this one

    @property
    def linear(self) -> nn.Linear:
        """The layer that holds the rows."""
        return self._linear[0]

    @property
    def bias(self) -> Tensor | None:
        """[V'], None for most models."""
        return self.linear.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] to [..., V']."""
        return self.linear(hidden)

    def with_int8_weights(self) -> HeadSlice:
        """The same rows, with weights of 8 bits for few hidden states where this machine has products of them."""
        return HeadSlice(fast_linear(self.linear, packed=False, int8=True))
