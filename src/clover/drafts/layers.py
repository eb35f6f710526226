"""Layers that draft systems share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.cache import KVCache


class CosineAttention(nn.Module):
    """Clover-2's attention between a state and one token embedding (2408.00264, "attention decoder").

    One query meets one key, so there is no softmax: each head scales its value by the cosine of query and key, and
    the result is added to the state. `A(s, e) = s + concat_j(cos(q_j, k_j) · v_j)`.

    Starts near the identity: Wq = Wk = I and Wv = 0, each plus zero-mean noise of standard deviation `noise`.
    """

    def __init__(self, hidden_size: int, num_heads: int, noise: float):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size)
        identity = torch.eye(hidden_size)
        start_linear(self.query, identity, noise)
        start_linear(self.key_value, torch.cat((identity, torch.zeros_like(identity))), noise)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """States [..., H] and token embeddings [..., H] to states [..., H]."""
        key, value = self.key_value(embedding).chunk(2, dim=-1)
        return state + cosine_weighted(self.query(self.norm(state)), key, value, self.num_heads)


class RecurrentLayer(nn.Module):
    """What makes a recurrent state of a token a good one for the next: a look at the text, and a gated MLP beside it.

        n = Norm(s)
        s + Wo [softmax(q kᵀ / √d) v ; silu(gate) · up]    with q, gate, up = W [n ; e]

    e is the token's embedding; k and v are of the committed text: of its states behind the augmenting layers, or before
    them where there are none. They are computed once per committed position and are the same for all nodes of a tree,
    so that a growing tree needs no cache along its paths.
    Attention and MLP read one product and write one, as in GPT-J. Starts as the exact identity: Wo = 0.

    Shapes: B batch, P states, A committed positions, S slots, H hidden, I width of the MLP, D = H / heads.
    """

    def __init__(self, hidden_size: int, num_heads: int, inner_size: int):
        super().__init__()
        self.num_heads, self.hidden_size, self.inner_size = num_heads, hidden_size, inner_size
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.of_state = nn.Linear(hidden_size, hidden_size + 2 * inner_size, bias=False)
        self.of_token = nn.Linear(hidden_size, hidden_size + 2 * inner_size, bias=False)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.output = nn.Linear(hidden_size + inner_size, hidden_size, bias=False)
        nn.init.zeros_(self.output.weight)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for keys and values of the text: B rows with room for `capacity` positions each."""
        weight, width = self.output.weight, self.hidden_size // self.num_heads
        return KVCache(1, batch_size, self.num_heads, width, width, capacity, weight.dtype, weight.device)

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each [B, heads, A, D], of the committed text's states [B, A, H]."""
        keys, values = self._heads(self.key_value(states)).chunk(2, dim=1)
        return keys, values

    def forward(self, states: Tensor, of_token: Tensor, *text: Any, causal: bool = False) -> Tensor:
        """States [B, P, H] to states [B, P, H]; `text` are keys, values and a mask, if there is one, as for `mix`."""
        return states + self.output(self.mix(states, of_token, *text, causal=causal))

    def mix(
        self,
        states: Tensor,
        of_token: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """What Wo takes, attention and MLP side by side, [B, P, H + I], of states [B, P, H].

        Args:
            of_token: [B, P, H + 2 I] what `self.of_token` makes of the embeddings.
            keys, values: [B, heads, S, D].
            mask: Bool, broadcast to [B, 1, P, S], True where a state may look; None for everywhere.
            causal: for whole texts, P = S: a state sees the positions up to its own.
        """
        joined = self.of_state(self.norm(states)) + of_token
        query, gate, up = joined.split((self.hidden_size, self.inner_size, self.inner_size), dim=-1)
        found = F.scaled_dot_product_attention(self._heads(query), keys, values, mask, is_causal=causal)
        return torch.cat((found.transpose(1, 2).flatten(2), F.silu(gate) * up), dim=-1)

    def _heads(self, joined: Tensor) -> Tensor:
        """[B, P, n · D] to [B, n, P, D]."""
        return joined.unflatten(-1, (-1, self.hidden_size // self.num_heads)).transpose(1, 2)


class ConcatLinear(nn.Module):
    """A linear layer on the concatenation of a state and one token embedding: an ablation of the attention.

    Starts as the identity on the state, plus zero-mean noise of standard deviation `noise`.
    """

    def __init__(self, hidden_size: int, noise: float):
        super().__init__()
        self.linear = identity_linear(2 * hidden_size, hidden_size, noise)

    def forward(self, state: Tensor, embedding: Tensor) -> Tensor:
        """States [..., H] and token embeddings [..., H] to states [..., H]."""
        return self.linear(torch.cat((state, embedding), dim=-1))


class WindowLinear(nn.Module):
    """A normed linear layer on a state and the newest tokens, [h_t ; E[x_{t+1}] ; E[x_t] ; E[x_{t-1}]].

    Starts as the normed state, plus zero-mean noise of standard deviation `noise` on the linear layer.
    """

    earlier = 2  # tokens before the newest one

    def __init__(self, hidden_size: int, noise: float):
        super().__init__()
        self.linear = identity_linear((2 + self.earlier) * hidden_size, hidden_size, noise)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)

    def forward(self, states: Tensor, embeddings: Tensor, earlier: Tensor) -> Tensor:
        """States and embeddings of the tokens after them, both [B, A, H], to [B, A, H].

        Args:
            earlier: [B, 2, H] embeddings of the tokens before the first of these; zeros for none.
        """
        count, tokens = embeddings.shape[1], torch.cat((earlier, embeddings), dim=1)
        shifted = [tokens[:, start : start + count] for start in range(self.earlier, -1, -1)]
        return self.norm(self.linear(torch.cat((states, *shifted), dim=-1)))


class ResidualBlock(nn.Module):
    """Medusa's head (2401.10774): `x + SiLU(Linear(x))`, starting as the exact identity."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        start_linear(self.linear, torch.zeros(hidden_size, hidden_size), noise=0.0)

    def forward(self, states: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        return states + F.silu(self.linear(states))


def cosine_weighted(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    """`concat_j(cos(q_j, k_j) · v_j)` over the heads j: three times [..., H] to [..., H]."""
    query, key, value = (x.unflatten(-1, (num_heads, -1)) for x in (query, key, value))
    similarity = F.cosine_similarity(query, key, dim=-1, eps=1e-6)
    return (similarity.unsqueeze(-1) * value).flatten(-2)


def identity_linear(inputs: int, outputs: int, noise: float) -> nn.Linear:
    """A layer that starts by handing on the first `outputs` of its inputs, plus zero-mean noise on its weights."""
    layer = nn.Linear(inputs, outputs)
    start_linear(layer, torch.eye(outputs, inputs), noise)
    return layer


def unit_scale(rows: Tensor) -> float:
    """What rows of any shape are multiplied by to have entries of mean square 1, the size of normed states."""
    length = torch.linalg.vector_norm(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
    return rows.numel() ** 0.5 / float(length)


def start_linear(layer: nn.Linear, weight: Tensor, noise: float) -> None:
    """Set a layer to `weight` plus zero-mean Gaussian noise, its bias to zero."""
    with torch.no_grad():
        layer.weight.copy_(weight + noise * torch.randn_like(weight))
        if layer.bias is not None:
            layer.bias.zero_()
