"""Layers that draft systems share."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig

NOISE = 0.01  # the standard deviation of noise on starting values, which papers call small
MAX_TABLE = 2**26  # bytes


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Set PyTorch's default dtype to float32 inside a ``with`` block, whatever the caller has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class ResidualBlock(nn.Module):
    """Medusa's head (2401.10774): `x + SiLU(Linear(x))`, which starts as the exact identity."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        start_linear(self.linear, torch.zeros(hidden_size, hidden_size))

    def forward(self, states: Tensor) -> Tensor:
        """Return x + SiLU(Linear(x)) [..., H] of x [..., H]."""
        return states + F.silu(self.linear(states))


def attention_heads(target: PretrainedConfig) -> int:
    """Return the number of heads of a draft's attention: the largest that divides H, up to the target's number.

    It is the target's own number, unless the target sets the width of its heads: then its number need not divide H.

    >>> from transformers import Qwen3Config
    >>> attention_heads(Qwen3Config(hidden_size=4096, num_attention_heads=48, head_dim=128))
    32
    """
    size, most = target.hidden_size, target.num_attention_heads
    return next(heads for heads in range(most, 0, -1) if size % heads == 0)


def key_value_heads(target: PretrainedConfig) -> int:
    """Return the number of key-value heads: the greatest common divisor of the target's and `attention_heads`."""
    heads = attention_heads(target)
    return math.gcd(heads, getattr(target, "num_key_value_heads", None) or heads)


def cosine_weighted(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    """Return `concat_j(cos(q_j, k_j) · v_j)` [..., H] over the heads j, of q, k, v [..., H]."""
    query, key, value = (x.unflatten(-1, (num_heads, -1)) for x in (query, key, value))
    similarity = F.cosine_similarity(query, key, dim=-1, eps=1e-6)
    return (similarity.unsqueeze(-1) * value).flatten(-2)


def identity_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a layer that starts as the identity on its first `outputs` inputs, with small noise on its weights."""
    layer = nn.Linear(inputs, outputs)
    start_linear(layer, torch.eye(outputs, inputs), NOISE)
    return layer


def unit_scale(rows: Tensor) -> float:
    """Return the factor that scales the entries of rows to mean square 1, the size of normalized states."""
    length = torch.linalg.vector_norm(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
    return rows.numel() ** 0.5 / float(length)


def start_linear(layer: nn.Linear, weight: Tensor, noise: float = 0.0) -> None:
    """Set a layer's weight to `weight` plus Gaussian noise with mean 0 and this standard deviation, its bias to 0."""
    with torch.no_grad():
        layer.weight.copy_(weight + noise * torch.randn_like(weight))
        if layer.bias is not None:
            layer.bias.zero_()


class TokenTable(nn.Module):
    """A table of the values in a step that depend only on a token, computed once for every token: parts [V, width].

    With a small vocabulary, each depth of the tree needs a look-up instead of several products.
    """

    def __init__(self, parts: Sequence[Tensor]):
        super().__init__()
        self.sizes = [part.shape[1] for part in parts]
        self.register_buffer("table", torch.cat(list(parts), dim=-1), persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of tokens Long [...], each [..., width]."""
        return self.get_buffer("table")[tokens].split(self.sizes, dim=-1)


def has_room(rows: Tensor, width: int) -> bool:
    """Return whether a table with `width` columns, for embeddings [V, H], needs at most 64 MiB."""
    return len(rows) * width * rows.element_size() <= MAX_TABLE
