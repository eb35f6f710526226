"""What Clover-2's recurrent step computes of a token alone, made once for every token.

Of the attention's key and value, of the recurrent layer's and of the projector's half that reads the embedding, nothing
depends on the text. With a small vocabulary there is room for all of them, and a depth of the tree costs a look-up
instead of three products.

Shapes: B batch, P frontier nodes, H hidden, I width of the recurrent layer's MLP, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MAX_BYTES = 2**26
_EPS = 1e-6  # as in `layers.cosine_weighted`


class TokenProducts:
    """Keys of length 1 per head, values and projections of all tokens.

    Args:
        recur: the `CosineAttention` of the recurrent step.
        layer: the `RecurrentLayer` after it, if there is one.
        projector: linear on [state ; embedding], or on the state alone.
        rows: [V, H] the tokens' embeddings.
    """

    def __init__(self, recur: Any, layer: Any, projector: Any, rows: Tensor):
        size = rows.shape[1]
        self.recur = recur
        self.state_weight = projector.weight[:, :size].T.contiguous()
        key, value = recur.key_value(rows).chunk(2, dim=-1)
        key = key.unflatten(-1, (recur.num_heads, -1))
        unit = (key / key.norm(dim=-1, keepdim=True).clamp_min(_EPS)).flatten(-2)
        bias = projector.bias.expand_as(rows)
        projected = bias if projector.in_features == size else bias + rows @ projector.weight[:, size:].T
        others = [] if layer is None else [layer.of_token(rows)]
        self.table = torch.cat((unit, value, projected, *others), dim=-1)  # [V, 3H], or [V, 4H + 2I]

    def step(
        self, states: Tensor, tokens: Tensor, layer: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """States [B, P, H] and the tokens Long [B, P] after them to the next states and what the projector gives.

        Args:
            layer: what the recurrent layer does with states and what it makes of the tokens, [B, P, H + 2I].
        """
        recur, size = self.recur, states.shape[-1]
        heads = (recur.num_heads, -1)
        rows = self.table[tokens]
        key, value, projected = rows[..., : 3 * size].chunk(3, dim=-1)
        query = recur.query(recur.norm(states)).unflatten(-1, heads)
        length = query.norm(dim=-1, keepdim=True).clamp_min(_EPS)
        cosine = (query * key.unflatten(-1, heads)).sum(-1, keepdim=True) / length
        states = states + (cosine * value.unflatten(-1, heads)).flatten(-2)
        states = layer(states, rows[..., 3 * size :])
        return states, projected + states @ self.state_weight


class CachedProducts:
    """The products of one draft, made when they are first asked for, and anew when its weights have changed."""

    def __init__(self) -> None:
        self._made: tuple[Any, TokenProducts] | None = None

    def of(
        self, recur: Any, layer: Any, projector: Any, rows: Tensor, embed: Callable[[Tensor], Tensor]
    ) -> TokenProducts | None:
        """The products; None where they would take more than 64 MiB.

        Args:
            rows: [V, H] the weight that embeddings are taken from.
            embed: tokens Long [V] to embeddings [V, H].
        """
        weights = [rows, *recur.parameters(), *projector.parameters()]
        width = 3 * rows.shape[1]
        if layer is not None:
            weights.append(layer.of_token.weight)
            width += layer.of_token.out_features
        if len(rows) * width * rows.element_size() > _MAX_BYTES or any(
            weight.is_inference() for weight in weights
        ):
            return None
        version = [(weight.data_ptr(), weight._version) for weight in weights]
        if self._made is None or self._made[0] != version:
            with torch.inference_mode(False), torch.no_grad():
                every = torch.arange(len(rows), device=rows.device)
                self._made = (version, TokenProducts(recur, layer, projector, embed(every)))
        return self._made[1]
