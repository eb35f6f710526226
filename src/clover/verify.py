"""Lossless verification: find the path of a token tree that the target model's own tokens follow. There are two rules.

Recursive rejection sampling (`verify_drawn`) is for trees whose children were drawn from the draft without replacement,
token matching (`verify`) for all others. Neither waits for the device. On a CPU `clover.verify_host` replaces
`verify_drawn` (`clover.engine.verifiers` chooses).

Shapes: B batch, N nodes (root included), D depth, P nodes whose children were drawn, K children at most, V vocabulary.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.rejection import draw_rule
from clover.sampling.numbers import most_probable
from clover.tree import TokenTree


@dataclass(frozen=True)
class Verified:
    """The accepted path of each tree and the tokens that it emits.

    Attributes:
        path: Long [B, D + 1], or as wide as the longest path; nodes from the root to the last accepted, then padding.
        counts: Long [B]; nodes on the path, root included. It is also the number of emitted tokens: the accepted ones
            and the bonus token.
        tokens: Long, as wide as `path`; the emitted tokens, padded with 0.
        finite: Long [B]; emitted tokens before the first one with unusable logits. None if not counted.
    """

    path: Tensor
    counts: Tensor
    tokens: Tensor
    finite: Tensor | None = field(default=None, repr=False)


def verify(tree: TokenTree, choices: Tensor) -> Verified:
    """Walk down each tree as long as a child has the token that the target chose at its parent.

    The choice at the last node of the walk is the bonus token. Each emitted token is the target's own choice after the
    text before it, so the text is that of plain decoding. Among siblings with the same token the deepest walk counts.

    Args:
        tree: the drafted tokens.
        choices: Long [B, N]; the token that the target itself writes after each node (`Sampler.choose`).

    Below, 6 is drafted after 5 and the target writes 6; 8 is drafted after 6 but the target writes 9.

    >>> tokens, parents = torch.tensor([[5, 7, 6, 8]]), torch.tensor([[-1, 0, 0, 2]])
    >>> verify(TokenTree.from_parents(tokens, parents, max_depth=2), choices=torch.tensor([[6, 1, 9, 2]]))
    Verified(path=tensor([[0, 2, 2]]), counts=tensor([2]), tokens=tensor([[6, 9, 0]]))
    """
    path, counts = _walk(tree, tree.tokens == choices.gather(1, tree.parents.clamp(min=0)))
    index = torch.arange(path.shape[1], device=path.device)
    return Verified(path, counts, choices.gather(1, path).masked_fill(index >= counts.unsqueeze(1), 0))


def verify_drawn(tree: TokenTree, target_probs: Tensor, tests: Tensor, bonus: Tensor) -> Verified:
    """Walk down each tree as long as a child is accepted; children are tested in the order of their draws.

    The rule is in `clover.rejection`. It is exact if the random numbers of draws, tests and bonus tokens are
    independent. The distribution of a greedy target is one token, so it accepts no other.

    Args:
        tree: the drafted tokens, with `draws`.
        target_probs: float64 [B, N, V], after all processors (`Sampler.target_probs`).
        tests: float64 [B, N] in (0, 1), one number for the test of each node (`Sampler.test_numbers`).
        bonus: float32 [B, D + 1, V], Gumbel numbers for the bonus token of a walk to each depth (`Sampler.gumbels`).

    Below, the target gives the drawn token half the draft's probability, and the test number is less than a half.

    >>> from dataclasses import replace
    >>> from clover.tree import Draws
    >>> tree = TokenTree.from_parents(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]))
    >>> draws = Draws(torch.tensor([[[0.0, 0.8, 0.2]]]).double(), torch.tensor([[0]]), torch.tensor([[[1]]]))
    >>> target_probs = torch.tensor([[[0.5, 0.4, 0.1], [1.0, 0.0, 0.0]]]).double()
    >>> tests = torch.tensor([[0.9, 0.45]]).double()
    >>> verify_drawn(replace(tree, draws=draws), target_probs, tests, bonus=torch.zeros(1, 2, 3))
    Verified(path=tensor([[0, 1]]), counts=tensor([2]), tokens=tensor([[1, 0]]))
    """
    draws = tree.draws
    assert draws is not None, "the tree has no draws, which recursive rejection sampling needs"
    thresholds, residual = draw_rule(tree, draws, target_probs.take_along_dim(draws.nodes.unsqueeze(2), 1))
    children = draws.children.flatten(1).clamp(min=0)
    passed = tests.gather(1, children).view_as(thresholds) < thresholds
    first = (passed & (passed.cumsum(2) == 1)).flatten(1)  # A child is accepted if no earlier sibling was.
    path, counts = _walk(tree, torch.zeros_like(tree.tokens).scatter_add(1, children, first.long()) > 0)

    last, depth = path[:, -1:], counts.unsqueeze(1) - 1
    refused = draws.nodes == last  # The walk ended at a node whose drawn children were all refused.
    slot = refused.long().argmax(1).view(-1, 1, 1)
    after_refusals, whole = (
        residual.take_along_dim(slot, 1),
        target_probs.take_along_dim(last.unsqueeze(2), 1),
    )
    left = torch.where(refused.any(1).view(-1, 1, 1), after_refusals, whole)
    token = most_probable(left.log() + bonus.take_along_dim(depth.unsqueeze(2), 1))
    index = torch.arange(path.shape[1], device=path.device)
    followed = tree.tokens.gather(1, path).roll(-1, dims=1)
    return Verified(path, counts, torch.where(index == depth, token, followed.masked_fill(index > depth, 0)))


def _walk(tree: TokenTree, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Walk down the `accepted` nodes, Bool [B, N], from the root; return `path` and `counts` of `Verified`."""
    off_path = (~accepted.unsqueeze(1) & tree.ancestor_mask)[:, :, 1:].any(2)
    last = tree.depths.masked_fill(off_path, -1).argmax(1, keepdim=True)
    on_path = tree.ancestor_mask.take_along_dim(last.unsqueeze(2), 1).squeeze(1)
    path = torch.where(on_path, torch.arange(on_path.shape[1], device=last.device), last).sort(1).values
    return path[:, : tree.max_depth + 1], on_path.sum(1)
