"""Lossless verification: how far down a token tree the target model's own tokens lead.

Shapes: B batch, N nodes (root included), D depth of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.tree import TokenTree


@dataclass(frozen=True)
class Verified:
    """What one decoding step settled.

    Attributes:
        path: Long [B, D + 1]; nodes from the root to the last accepted one, padded by repeating the last.
        counts: Long [B]; nodes on the path, root included, and tokens emitted: counts - 1 accepted draft
            tokens and the bonus token.
        tokens: Long [B, D + 1]; the emitted tokens, padded by 0.
    """

    path: Tensor
    counts: Tensor
    tokens: Tensor


def verify(tree: TokenTree, choices: Tensor) -> Verified:
    """Walk down each tree as long as a child carries the token that the target chose at its parent.

    The choice at the node where the walk ends is the bonus token. Exact for every tree whose nodes were fixed
    before the choices were drawn, at every temperature and under every logits processor: each emitted token
    is the target's own draw given the text before it. Should two siblings carry the same token, the walk that
    gets deeper counts. Nothing here waits for the device.

    Args:
        tree: the candidates.
        choices: Long [B, N]; the token that the target itself says after each node (`Sampler.choose`).

    Below, 6 is offered after 5 and the target says 6; 8 is offered after 6 but the target says 9.

    >>> tokens, parents = torch.tensor([[5, 7, 6, 8]]), torch.tensor([[-1, 0, 0, 2]])
    >>> verify(TokenTree.from_parents(tokens, parents, max_depth=2), choices=torch.tensor([[6, 1, 9, 2]]))
    Verified(path=tensor([[0, 2, 2]]), counts=tensor([2]), tokens=tensor([[6, 9, 0]]))
    """
    nodes, device = tree.tokens.shape[1], tree.tokens.device
    mismatch = tree.tokens != choices.gather(1, tree.parents.clamp(min=0))
    mismatch[:, 0] = False
    rejected = (mismatch.unsqueeze(1) & tree.ancestor_mask).any(2)
    last = tree.depths.masked_fill(rejected, -1).argmax(1, keepdim=True)
    accepted = tree.ancestor_mask.gather(1, last.unsqueeze(2).expand(-1, -1, nodes)).squeeze(1)
    counts = accepted.sum(1)
    index = torch.arange(nodes, device=device)
    path = torch.where(accepted, index, last).sort(1).values[:, : tree.max_depth + 1]
    tokens = choices.gather(1, path).masked_fill(index[: path.shape[1]] >= counts.unsqueeze(1), 0)
    return Verified(path, counts, tokens)
