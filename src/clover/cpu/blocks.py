"""Run decoder layers of LLaMA's form with half as many small operators, and the same numbers to the last bit.

    y = x + Wo attention(rotate(Wq n(x)), rotate(Wk n(x)), Wv n(x)),   z = y + Wd (act(Wg n'(y)) * Wu n'(y))

In transformers such a layer runs some sixty operators and ten calls of modules besides its products. With a few rows
they take a tenth of a step. They also take so long at a stretch that threads sleep before the next product.

There is no list of classes of this form. `streamline` runs each kind of layer on random inputs, and changes it if the
result has exactly the same bits. Gradients, compilers and inputs of other shapes use the layer's own code.

Shapes: B batch, N new tokens, H hidden, Q query heads, G key-value heads, C width of a head.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_MOST_ROWS = 1024  # with more, a layer's products take nearly all of the time
_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_FAILURES = (
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_ROWS, _TOKENS, _BEFORE = 2, 5, 3  # random inputs: rows, new tokens, tokens in the cache


def streamline(module: nn.Module) -> None:
    """Let the layers of LLaMA's form run fewer operators, in a module that `shared_copy` made."""
    tried = dict[Any, bool]()
    for layer in list(module.modules()):
        if not _may_be(layer):
            continue
        kind = tuple(_facts(layer))
        if kind not in tried:
            tried[kind] = _is_same(layer)
        if tried[kind]:
            layer.__class__ = _class_of(type(layer))


class Streamlined(nn.Module):
    """The base class that a changed layer gets in front of its own class; its parts keep their names."""

    self_attn: Any
    mlp: Any
    input_layernorm: Any
    post_attention_layernorm: Any

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *args: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """Return z [B, N, H] for x [B, N, H], an additive mask, and the rotary cosines and sines [B, N, C]."""
        if args or not self._suits(hidden_states, position_embeddings):
            return super().forward(
                hidden_states,
                attention_mask,
                position_ids,
                *args,
                position_embeddings=position_embeddings,
                **options,
            )
        assert position_embeddings is not None
        read = _normed(self.input_layernorm, hidden_states)
        hidden_states = hidden_states + self._attended(read, position_embeddings, attention_mask, **options)
        read, mlp = _normed(self.post_attention_layernorm, hidden_states), self.mlp
        return hidden_states + mlp.down_proj(mlp.act_fn(mlp.gate_proj(read)) * mlp.up_proj(read))

    def _suits(self, hidden_states: Tensor, rotation: tuple[Tensor, Tensor] | None) -> bool:
        """Return True for inputs like those that were tried, unless gradients or a compiler need the own code."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.training or rotation is None:
            return False
        cosine = rotation[0]
        few = hidden_states.ndim == 3 and hidden_states.shape[0] * hidden_states.shape[1] <= _MOST_ROWS
        return few and cosine.ndim == 3 and cosine.shape[-1] == self.self_attn.head_dim

    def _attended(
        self, read: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, **options: Any
    ) -> Tensor:
        attention, (rows, tokens, _) = self.self_attn, read.shape
        query, key, value = (
            part(read).view(rows, tokens, -1, attention.head_dim).transpose(1, 2)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cosine, sine = (part.unsqueeze(1) for part in rotation)
        query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
        store = options.pop("cache", None) or options.pop("past_key_values", None)
        if store is not None:
            key, value = store.update(key, value, attention.layer_idx)
        window = {"sliding_window": attention.sliding_window} if hasattr(attention, "sliding_window") else {}
        attend = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
        found, _ = attend(
            attention, query, key, value, mask, dropout=0.0, scaling=attention.scaling, **window, **options
        )
        return attention.o_proj(found.reshape(rows, tokens, -1))


@cache
def _class_of(kind: type) -> type:
    return type(f"Streamlined{kind.__name__}", (Streamlined, kind), {"__module__": kind.__module__})


def _normed(norm: Any, states: Tensor) -> Tensor:
    """Return w · (x / rms(x)); the quotient is rounded to the dtype of x before the product."""
    return norm.weight * rms_norm(states, norm.weight.shape, None, norm.variance_epsilon)


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return (a, b) · cos + (-b, a) · sin [B, Q, N, C], where a and b are the halves of each head."""
    first, second = states.chunk(2, dim=-1)
    return (states * cosine).add_(torch.cat((-second, first), dim=-1).mul_(sine))


def _may_be(layer: Any) -> bool:
    """Return True if a layer has the parts of LLaMA's form, no hooks, which would be skipped, and is not trained."""
    parts = all(hasattr(layer, name) for name in _PARTS)
    if not parts or layer.training or not hasattr(layer.input_layernorm, "variance_epsilon"):
        return False
    attention = layer.self_attn
    found = getattr(getattr(attention, "config", None), "_attn_implementation", None)
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
    return hasattr(attention, "head_dim") and found in ALL_ATTENTION_FUNCTIONS and not hooked


def _facts(layer: nn.Module) -> Iterator[object]:
    """Yield the properties that layers of one kind share: all but the values of weights and the layer's number."""
    for name, part in layer.named_modules():
        plain = {
            key: value
            for key, value in vars(part).items()
            if isinstance(value, bool | int | float | str | None) and key not in ("layer_idx", "training")
        }
        yield name, type(part), tuple(sorted(plain.items(), key=repr))
    yield from ((name, weight.shape, weight.dtype) for name, weight in layer.named_parameters())


@torch.no_grad()
def _is_same(layer: Any) -> bool:
    """Return True if a layer gives the same bits as `Streamlined` for random inputs."""
    try:
        weight = layer.input_layernorm.weight
        changed = object.__new__(_class_of(type(layer)))
        vars(changed).update(vars(layer))
        return all(
            torch.equal(*(_run(one, weight, tokens, seen) for one in (layer, changed)))
            for tokens, seen in ((1, 0), (_TOKENS, 0), (_TOKENS, _BEFORE), (1, _BEFORE))
        )
    except _FAILURES:  # the layer is built differently and does not accept these inputs
        return False


def _run(layer: Any, like: Tensor, tokens: int, seen: int) -> Tensor:
    """Return a layer's output for random inputs, the same in every call, with `seen` tokens in the cache."""
    noise, attention = torch.Generator().manual_seed(tokens), layer.self_attn

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float32, device="cpu", generator=noise).to(like.dtype)

    store = _Store(drawn, seen, attention.layer_idx)
    hidden, rotation = drawn(_ROWS, tokens, len(like)), drawn(2, _ROWS, tokens, attention.head_dim)
    shape = _ROWS, 1, tokens, seen + tokens
    visible = torch.rand(shape, dtype=torch.float32, device="cpu", generator=noise) > 0.3
    visible[..., -1] = True
    mask = torch.where(visible, like.new_zeros(()), float("-inf"))
    output = layer(hidden, attention_mask=mask, cache=store, position_embeddings=tuple(rotation.unbind()))
    return output if isinstance(output, Tensor) else torch.empty(0)


class _Store:
    """A cache that puts random keys and values before new ones."""

    def __init__(self, drawn: Any, seen: int, layer: int):
        self._drawn, self._seen, self._layer = drawn, seen, layer

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *more: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        assert layer == self._layer
        rows, heads, width = keys.shape[0], keys.shape[1], keys.shape[3]
        before = [self._drawn(rows, heads, self._seen, width) for _ in range(2)]
        return torch.cat((before[0], keys), dim=2), torch.cat((before[1], values), dim=2)
