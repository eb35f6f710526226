"""Layers that draft systems share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        query = self.query(self.norm(state)).unflatten(-1, (self.num_heads, -1))
        key, value = self.key_value(embedding).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        similarity = F.cosine_similarity(query, key, dim=-1, eps=1e-6)
        return state + (similarity.unsqueeze(-1) * value).flatten(-2)


def start_linear(layer: nn.Linear, weight: Tensor, noise: float) -> None:
    """Set a layer to `weight` plus zero-mean Gaussian noise, its bias to zero."""
    with torch.no_grad():
        layer.weight.copy_(weight + noise * torch.randn_like(weight))
        if layer.bias is not None:
            layer.bias.zero_()
