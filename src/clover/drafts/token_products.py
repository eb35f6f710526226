"""What Clover-2's recurrent step computes of a token alone, made once for every token, and products made one.

Nothing of the attention's key and value, of the recurrent layer's half for the token, and of the projector's half that
reads the embedding depends on the text. With a small vocabulary there is room for all of them, and a depth of the tree
costs a look-up instead of three products.

Where the step goes on from its output, nobody reads the state between the recurrent layer, s + Wo m, and the projector
P: one product with [P ; P Wo] takes [s ; m] through both.

Shapes: B batch, P frontier nodes, H hidden, I width of the recurrent layer's MLP, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clover.target.rounding import RoundedLinear, can_round

_MAX_BYTES = 2**26
_EPS = 1e-6  # as in `layers.cosine_weighted`


class TokenProducts:
    """Of all tokens: projections, what the recurrent layer makes of them, and keys of length 1 per head and values.

    Args:
        recur: the `CosineAttention` of the recurrent step, if it has one.
        layer: its `RecurrentLayer`, if it has one.
        projector: linear on [state ; embedding], or on the state alone.
        rows: [V, H] the tokens' embeddings.
        from_output: whether the step goes on from its output, and not from its state.
    """

    def __init__(self, recur: Any, layer: Any, projector: Any, rows: Tensor, from_output: bool):
        size = rows.shape[1]
        self.recur, self.layer = recur, layer
        weight, self.joined = (
            projector.weight[:, :size],
            False,
        )  # whether one product takes [s ; m] through both
        if layer is not None and from_output:
            self.joined = True
            weight = torch.cat((weight, weight @ layer.output.weight), dim=1)
        self.weight = (
            weight.contiguous()
        )  # [H, H], or [H, 2 H + I] for [state ; what the layer adds, before Wo]
        self.rounded = RoundedLinear(self.weight, None) if can_round(self.weight) else None
        bias = projector.bias.expand_as(rows)
        parts = [bias if projector.in_features == size else bias + rows @ projector.weight[:, size:].T]
        if layer is not None:
            parts.append(layer.of_token(rows))
        if recur is not None:
            key, value = recur.key_value(rows).chunk(2, dim=-1)
            key = key.unflatten(-1, (recur.num_heads, -1))
            parts += [(key / key.norm(dim=-1, keepdim=True).clamp_min(_EPS)).flatten(-2), value]
        self.table = torch.cat(parts, dim=-1)  # [V, W]
        self.sizes = [part.shape[1] for part in parts]

    def step(
        self, states: Tensor, tokens: Tensor, mix: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """States [B, P, H] and the tokens Long [B, P] after them to the next states and what the projector gives.

        The next states mean nothing where the step goes on from its output.

        Args:
            mix: `RecurrentLayer.mix` of states and what it makes of the tokens, [B, P, H + 2I]; called only where there
                is such a layer.
        """
        projected, *others = self.table[tokens].split(self.sizes, dim=-1)
        if self.recur is not None:
            *others, key, value = others
            states = states + self._found(states, key, value)
        read = states
        if self.layer is not None:
            mixed = mix(states, others[0])
            if self.joined:
                read = torch.cat((states, mixed), dim=-1)
            else:
                read = states = states + self.layer.output(mixed)
        if self.rounded is not None and self.rounded.takes(read):
            return states, projected + self.rounded(read)
        return states, projected + F.linear(read, self.weight)

    def _found(self, states: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What the attention adds to the states, all [B, P, H]."""
        heads = (self.recur.num_heads, -1)
        query = self.recur.query(self.recur.norm(states)).unflatten(-1, heads)
        length = query.norm(dim=-1, keepdim=True).clamp_min(_EPS)
        cosine = (query * key.unflatten(-1, heads)).sum(-1, keepdim=True) / length
        return (cosine * value.unflatten(-1, heads)).flatten(-2)


class CachedProducts:
    """The products of one draft, made when they are first asked for, and anew when its weights have changed."""

    def __init__(self) -> None:
        self._made: tuple[Any, TokenProducts] | None = None

    def of(
        self,
        recur: Any,
        layer: Any,
        projector: Any,
        rows: Tensor,
        embed: Callable[[Tensor], Tensor],
        from_output: bool,
    ) -> TokenProducts | None:
        """The products; None where they would take more than 64 MiB.

        Args:
            rows: [V, H] the weight that embeddings are taken from.
            embed: tokens Long [V] to embeddings [V, H].
            recur, layer, projector, from_output: as for `TokenProducts`.
        """
        weights = [rows, *projector.parameters()]
        width = rows.shape[1]
        if recur is not None:
            weights += recur.parameters()
            width += 2 * rows.shape[1]
        if layer is not None:
            weights += [layer.of_token.weight, layer.output.weight]
            width += layer.of_token.out_features
        if len(rows) * width * rows.element_size() > _MAX_BYTES or any(
            weight.is_inference() for weight in weights
        ):
            return None
        version = [(weight.data_ptr(), weight._version) for weight in weights]
        if self._made is None or self._made[0] != version:
            with torch.inference_mode(False), torch.no_grad():
                every = torch.arange(len(rows), device=rows.device)
                self._made = (version, TokenProducts(recur, layer, projector, embed(every), from_output))
        return self._made[1]
