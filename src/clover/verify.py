"""Lossless verification: how far down a token tree the target model's own tokens lead. Two rules.

Token matching (`verify`) serves every tree that was drafted independently of the target's random numbers; recursive
rejection sampling (`verify_drawn`) serves trees whose children were drawn from the draft without replacement. Nothing
here waits for the device; only `draw_rule` loops, over the children of one node. On a CPU `clover.verify_host` replaces
`verify_drawn` (`clover.engine.verifiers` chooses).

Shapes: B batch, N nodes (root included), D depth, P nodes whose children were drawn, K children at most, V vocabulary.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.sampling.numbers import most_probable
from clover.tree import Draws, TokenTree


@dataclass(frozen=True)
class Verified:
    """The accepted path of each tree and the tokens that it emits.

    Attributes:
        path: Long [B, D + 1], or as wide as the longest; nodes from the root to the last accepted one, then padding.
        counts: Long [B]; nodes on the path, root included. As many tokens are emitted: the accepted ones and the
            bonus token.
        tokens: Long, as wide as `path`; the emitted tokens, padded by 0.
        finite: Long [B]; emitted tokens before the first one whose logits cannot be used (`finite_counts`). None if
            that was not tested.
    """

    path: Tensor
    counts: Tensor
    tokens: Tensor
    finite: Tensor | None = field(default=None, repr=False)


def verify(tree: TokenTree, choices: Tensor) -> Verified:
    """Walk down each tree as long as a child carries the token that the target chose at its parent.

    The choice at the node where the walk ends is the bonus token. Each emitted token is the target's own draw after
    the text before it, so the text is that of plain decoding. Where siblings carry the same token, the deepest walk
    counts.

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


def finite_counts(logits: Tensor, verified: Verified) -> Tensor:
    """Count the emitted tokens before the first one whose logits cannot be used, Long [B], by logits [B, N, V].

    Logits cannot be used if one is NaN or +inf, or none is finite; -inf excludes a token.
    """
    path = verified.path
    if logits.shape[1] > 1:  # a path has fewer nodes than its tree
        logits = logits[torch.arange(len(path), device=path.device).unsqueeze(1), path]
    bad = ~logits.amax(-1).isfinite()
    bad &= torch.arange(bad.shape[1], device=bad.device) < verified.counts.unsqueeze(1)
    return torch.where(bad.any(1), bad.long().argmax(1), verified.counts)


def verify_drawn(tree: TokenTree, target_probs: Tensor, tests: Tensor, bonus: Tensor) -> Verified:
    """Walk down each tree as long as a child, tested in the order of the draws, is accepted.

    Exact when the three kinds of random numbers (draws, tests, bonus token) are independent. A greedy sequence has
    its target distribution all on one token; it accepts this token and no other.

    Args:
        tree: the drafted tokens, with `draws`.
        target_probs: float64 [B, N, V], after all processors (`Sampler.target_probs`).
        tests: float64 [B, N] in (0, 1), one number for the test of each node (`Sampler.test_numbers`).
        bonus: float32 [B, D + 1, V], the Gumbel numbers that choose the bonus token after a walk that ends at each
            depth (`Sampler.gumbels`).

    Below, the target gives the drawn token half the draft's probability, and the test number is less than a half.

    >>> from dataclasses import replace
    >>> tree = TokenTree.from_parents(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]))
    >>> draws = Draws(torch.tensor([[[0.0, 0.8, 0.2]]]).double(), torch.tensor([[0]]), torch.tensor([[[1]]]))
    >>> target_probs = torch.tensor([[[0.5, 0.4, 0.1], [1.0, 0.0, 0.0]]]).double()
    >>> tests = torch.tensor([[0.9, 0.45]]).double()
    >>> verify_drawn(replace(tree, draws=draws), target_probs, tests, bonus=torch.zeros(1, 2, 3))
    Verified(path=tensor([[0, 1]]), counts=tensor([2]), tokens=tensor([[1, 0]]))
    """
    draws = tree.draws
    assert draws is not None, "the tree has no draws, which recursive rejection sampling needs"
    vocabulary = target_probs.shape[2]
    at_nodes = target_probs.gather(1, draws.nodes.unsqueeze(2).expand(-1, -1, vocabulary))
    thresholds, residual = draw_rule(tree, draws, at_nodes)
    children = draws.children.flatten(1).clamp(min=0)
    passed = tests.gather(1, children).view_as(thresholds) < thresholds
    first = (passed & (passed.cumsum(2) == 1)).flatten(1)  # a child is accepted if no earlier sibling was
    path, counts = _walk(tree, torch.zeros_like(tree.tokens).scatter_add(1, children, first.long()) > 0)

    last, depth = path[:, -1:], counts.unsqueeze(1) - 1
    refused = draws.nodes == last  # the walk ends at a node with drawn children: their residual is left
    slot = refused.long().argmax(1).view(-1, 1, 1).expand(-1, -1, vocabulary)
    whole = target_probs.gather(1, last.unsqueeze(2).expand(-1, -1, vocabulary)).squeeze(1)
    left = torch.where(refused.any(1, keepdim=True), residual.gather(1, slot).squeeze(1), whole)
    numbers = bonus.gather(1, depth.unsqueeze(2).expand(-1, -1, vocabulary)).squeeze(1)
    token = most_probable(left.log() + numbers).unsqueeze(1)
    index = torch.arange(path.shape[1], device=path.device)
    followed = tree.tokens.gather(1, path).roll(-1, dims=1)
    return Verified(path, counts, torch.where(index == depth, token, followed.masked_fill(index > depth, 0)))


def draw_rule(tree: TokenTree, draws: Draws, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Work out the rule at all nodes with drawn children, of target_probs float64 [B, P, V] at `draws.nodes`.

    Child x is accepted with probability min(1, r(x) / q(x)), where r is the target's distribution and q the draft's
    at first; when it is refused, r becomes the positive part of r - q and q loses x, both normalised anew (recursive
    rejection sampling without replacement: EAGLE, 2401.15077, section 3.3). Padding is not tested.

    Returns:
        thresholds: float64 [B, P, K]; a child is accepted if its test number is below this, and those of the children
            drawn before it were not below theirs. 0 where there is no child.
        residual: float64 [B, P, V]; the distribution of the bonus token after all children were refused.
    """
    target, draft, thresholds = target_probs, draws.draft_probs, list[Tensor]()
    for child in draws.children.unbind(2):
        node = child.clamp(min=0)
        token = tree.tokens.gather(1, node).unsqueeze(2)
        drawn = draft.gather(2, token)
        exists = ((child >= 0) & (tree.parents.gather(1, node) >= 0)).unsqueeze(2) & (drawn > 0)
        ratio = torch.where(exists, target.gather(2, token) / drawn, 0.0)
        thresholds.append(ratio.clamp(max=1.0).squeeze(2))
        residual, undrawn = after_refusal(target, draft, token)
        target, draft = torch.where(exists, residual, target), torch.where(exists, undrawn, draft)
    return torch.stack(thresholds, dim=2), target


def after_refusal(target: Tensor, draft: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return both distributions [..., V] after the token [..., 1] that was drawn from `draft` has been refused."""
    residual = _normalised((target - draft).clamp(min=0), target)
    return residual, _normalised(draft.scatter(-1, token, 0.0), draft)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Return probabilities [..., V]; `otherwise` where all weights are zero, which only rounding brings about."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, otherwise)


def _walk(tree: TokenTree, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Go down as far as nodes are accepted, Bool [B, N], the root aside; return `path` and `counts` of `Verified`."""
    nodes, device = tree.tokens.shape[1], tree.tokens.device
    refused = ~accepted
    refused[:, 0] = False
    off_path = (refused.unsqueeze(1) & tree.ancestor_mask).any(2)
    last = tree.depths.masked_fill(off_path, -1).argmax(1, keepdim=True)
    on_path = tree.ancestor_mask.gather(1, last.unsqueeze(2).expand(-1, -1, nodes)).squeeze(1)
    path = torch.where(on_path, torch.arange(nodes, device=device), last).sort(1).values
    return path[:, : tree.max_depth + 1], on_path.sum(1)
