"""Lossless verification: how far down a token tree the target model's own tokens lead.

Token matching (`verify`) is for trees that do not look at what the target chooses at their nodes, recursive rejection
sampling (`verify_drawn`) for children drawn from the draft without replacement.

Shapes: B batch, N nodes (root included), D depth, P nodes whose children were drawn, K children at most, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.sampling.numbers import most_probable
from clover.tree import Draws, TokenTree


@dataclass(frozen=True)
class Verified:
    """What one decoding step settled.

    Attributes:
        path: Long [B, D + 1], or as wide as the longest; nodes from the root to the last accepted one, then padding.
        counts: Long [B]; nodes on the path, root included, and tokens emitted: the accepted ones and the bonus token.
        tokens: Long, as wide as `path`; the emitted tokens, padded by 0.
    """

    path: Tensor
    counts: Tensor
    tokens: Tensor


def verify(tree: TokenTree, choices: Tensor) -> Verified:
    """Walk down each tree as long as a child carries the token that the target chose at its parent.

    The choice at the node where the walk ends is the bonus token. Exact for every tree that does not look at the
    choices: each emitted token is the target's own draw given the text before it. Of two siblings with the same token
    the walk that gets deeper counts. Nothing here waits for the device.

    Args:
        tree: the candidates.
        choices: Long [B, N]; the token that the target itself says after each node (`Sampler.choose`).

    Below, 6 is offered after 5 and the target says 6; 8 is offered after 6 but the target says 9.

    >>> tokens, parents = torch.tensor([[5, 7, 6, 8]]), torch.tensor([[-1, 0, 0, 2]])
    >>> verify(TokenTree.from_parents(tokens, parents, max_depth=2), choices=torch.tensor([[6, 1, 9, 2]]))
    Verified(path=tensor([[0, 2, 2]]), counts=tensor([2]), tokens=tensor([[6, 9, 0]]))
    """
    path, counts = _walk(tree, tree.tokens == choices.gather(1, tree.parents.clamp(min=0)))
    index = torch.arange(path.shape[1], device=path.device)
    tokens = choices.gather(1, path).masked_fill(index >= counts.unsqueeze(1), 0)
    return Verified(path, counts, tokens)


def verify_on_host(tree: TokenTree, choices: Tensor) -> Verified:
    """What `verify` finds, by a loop over the nodes: on a CPU half the time. Paths are as wide as the longest.

    >>> tokens, parents = torch.tensor([[5, 7, 6, 8]]), torch.tensor([[-1, 0, 0, 2]])
    >>> verify_on_host(TokenTree.from_parents(tokens, parents), choices=torch.tensor([[6, 1, 9, 2]]))
    Verified(path=tensor([[0, 2]]), counts=tensor([2]), tokens=tensor([[6, 9]]))
    """
    chosen = choices.tolist()
    found = list(map(_follow, tree.tokens.tolist(), tree.parents.tolist(), chosen))
    counts = list(map(len, found))
    paths = [path + [0] * (max(counts) - len(path)) for path in found]
    tokens = [
        [own[node] for node in path] + [0] * (max(counts) - len(path))
        for own, path in zip(chosen, found, strict=True)
    ]
    return Verified(torch.tensor(paths), torch.tensor(counts), torch.tensor(tokens))


def _follow(tokens: list[int], parents: list[int], chosen: list[int]) -> list[int]:
    """The accepted path of one sequence."""
    depths, last = [0], 0  # of the nodes that the target's tokens lead to; -1 of others
    for node in range(1, len(tokens)):
        parent = parents[node]
        follows = parent >= 0 <= depths[parent] and tokens[node] == chosen[parent]
        depths.append(depths[parent] + 1 if follows else -1)
        if depths[node] > depths[last]:
            last = node
    path = [last]
    while path[-1]:
        path.append(parents[path[-1]])
    return path[::-1]


@dataclass(frozen=True)
class DrawRule:
    """Recursive rejection sampling at every node with drawn children, without its random numbers.

    Attributes:
        thresholds: float64 [B, P, K]; a child is accepted if its number is below this, and those of the children
            drawn before it were not below theirs. 0 where there is no child.
        residual: float64 [B, P, V]; the distribution of the bonus token after all children were refused.
    """

    thresholds: Tensor
    residual: Tensor


def draw_rule(tree: TokenTree, draws: Draws, target_probs: Tensor) -> DrawRule:
    """Work out the rule for all nodes at once, of target_probs float64 [B, P, V] at `draws.nodes`.

    Child x is accepted with probability min(1, r(x) / q(x)), where r is the target's distribution and q the draft's
    at first; when it is refused, r becomes the positive part of r - q and q loses x, both normalised anew (recursive
    rejection sampling without replacement: EAGLE, 2401.15077, section 3.3). Padding is not tested.
    """
    target, draft, thresholds = target_probs, draws.draft_probs, []
    for child in draws.children.unbind(2):
        node = child.clamp(min=0)
        exists = ((child >= 0) & (tree.parents.gather(1, node) >= 0)).unsqueeze(2)
        token = tree.tokens.gather(1, node).unsqueeze(2)
        drawn = draft.gather(2, token)
        exists = exists & (drawn > 0)
        ratio = torch.where(exists, target.gather(2, token) / drawn, 0.0)
        thresholds.append(ratio.clamp(max=1.0).squeeze(2))
        residual, undrawn = _after_refusal(target, draft, token)
        target, draft = torch.where(exists, residual, target), torch.where(exists, undrawn, draft)
    return DrawRule(torch.stack(thresholds, dim=2), target)


def verify_drawn(tree: TokenTree, target_probs: Tensor, tests: Tensor, bonus: Tensor) -> Verified:
    """Verify children that were drawn from the draft without replacement.

    Exact when the three kinds of random numbers (draws, tests, bonus token) are independent. A greedy sequence has
    its target distribution all on one token; it accepts this token and no other. Nothing here waits for the device.

    Args:
        tree: the candidates, with `draws`.
        target_probs: float64 [B, N, V], after all processors (`Sampler.target_probs`).
        tests: float64 [B, N] in (0, 1), one number for each node's own test (`Sampler.test_numbers`).
        bonus: float32 [B, D + 1, V], what chooses the bonus token should the walk end at this depth
            (`Sampler.gumbels`).

    Below, the target gives the drawn token half the draft's probability, and the number asks for less.

    >>> from dataclasses import replace
    >>> tree = TokenTree.from_parents(torch.tensor([[0, 1]]), torch.tensor([[-1, 0]]))
    >>> draws = Draws(torch.tensor([[[0.0, 0.8, 0.2]]]).double(), torch.tensor([[0]]), torch.tensor([[[1]]]))
    >>> target_probs = torch.tensor([[[0.5, 0.4, 0.1], [1.0, 0.0, 0.0]]]).double()
    >>> tests = torch.tensor([[0.9, 0.45]]).double()
    >>> verify_drawn(replace(tree, draws=draws), target_probs, tests, bonus=torch.zeros(1, 2, 3))
    Verified(path=tensor([[0, 1]]), counts=tensor([2]), tokens=tensor([[1, 0]]))
    """
    draws = tree.draws
    assert draws is not None, "recursive rejection sampling needs to know how the children were drawn"
    at_nodes = draws.nodes.unsqueeze(2).expand_as(draws.draft_probs)
    rule = draw_rule(tree, draws, target_probs.gather(1, at_nodes))
    path, counts = _walk(tree, _accepted(tree, draws, rule, tests))
    last = path[:, -1:]
    index, end = torch.arange(path.shape[1], device=path.device), counts.unsqueeze(1) - 1
    numbers = bonus.gather(1, end.unsqueeze(2).expand(-1, -1, bonus.shape[2])).squeeze(1)
    token = most_probable(_remaining(draws, rule, target_probs, last).log() + numbers).unsqueeze(1)
    followed = tree.tokens.gather(1, path).roll(-1, dims=1)
    tokens = torch.where(index == end, token, followed.masked_fill(index > end, 0))
    return Verified(path, counts, tokens)


def verify_drawn_on_host(
    tree: TokenTree, target_probs: Callable[[Tensor], Tensor], tests: Tensor, bonus: Tensor
) -> Verified:
    """What `verify_drawn` finds, one child after another, so that only nodes that are reached cost anything.

    With a vocabulary of 49,152 and 25 nodes that is a tenth of the time on a CPU. Paths are as wide as the longest.

    Args:
        target_probs: float64 [B, V] at the last nodes of paths, Long [B, A] from the root on.
        tree, tests, bonus: see `verify_drawn`.
    """
    draws = tree.draws
    assert draws is not None, "recursive rejection sampling needs to know how the children were drawn"
    paths, last = [[0] for _ in tree.tokens], [-1] * len(tree.tokens)
    nodes, depth = draws.nodes.tolist(), 0
    while unfinished := [row for row, token in enumerate(last) if token < 0]:
        probs = target_probs(torch.tensor(_filled_up(paths)))
        for row in unfinished:
            child, target = None, probs[row]
            if (at := paths[row][-1]) in nodes[row]:
                child, target = _first_accepted(tree, draws, tests, row, nodes[row].index(at), target)
            if child is None:
                last[row] = int(most_probable(target.log() + bonus[row, depth]))
            else:
                paths[row].append(child)
        depth += 1
    counts, path = torch.tensor([len(own) for own in paths]), torch.tensor(_filled_up(paths))
    index, end = torch.arange(path.shape[1]), counts.unsqueeze(1) - 1
    followed = tree.tokens.gather(1, path).roll(-1, dims=1).masked_fill(index > end, 0)
    return Verified(path, counts, torch.where(index == end, torch.tensor(last).unsqueeze(1), followed))


def _filled_up(paths: Sequence[list[int]]) -> list[list[int]]:
    """All as long as the longest, by their last nodes."""
    longest = max(map(len, paths))
    return [path + path[-1:] * (longest - len(path)) for path in paths]


def _first_accepted(
    tree: TokenTree, draws: Draws, tests: Tensor, row: int, slot: int, target: Tensor
) -> tuple[int | None, Tensor]:
    """The first child of one node that passes its test, if any; and what is then left of `target` [V]."""
    draft = draws.draft_probs[row, slot]
    for child in draws.children[row, slot].tolist():
        if child < 0 or int(tree.parents[row, child]) < 0:
            continue
        token = tree.tokens[row, child : child + 1]
        own, drawn = float(target[token]), float(draft[token])
        if drawn > 0:
            if float(tests[row, child]) < min(own / drawn, 1.0):
                return child, target
            target, draft = _after_refusal(target, draft, token)
    return None, target


def _after_refusal(target: Tensor, draft: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Both distributions [..., V] once the token [..., 1] that was drawn from `draft` has been refused."""
    residual = _normalised((target - draft).clamp(min=0), target)
    return residual, _normalised(draft.scatter(-1, token, 0.0), draft)


def _accepted(tree: TokenTree, draws: Draws, rule: DrawRule, tests: Tensor) -> Tensor:
    """The first child of each node that passes its test, Bool [B, N]."""
    children = draws.children.flatten(1).clamp(min=0)
    passed = tests.gather(1, children).view_as(rule.thresholds) < rule.thresholds
    first = passed & (passed.cumsum(2) == 1)
    return torch.zeros_like(tree.tokens).scatter_add(1, children, first.flatten(1).long()) > 0


def _remaining(draws: Draws, rule: DrawRule, target_probs: Tensor, last: Tensor) -> Tensor:
    """The bonus token's distribution at nodes `last` [B, 1] where the walks end, float64 [B, V]."""
    has_children = draws.nodes == last
    slot = has_children.long().argmax(1, keepdim=True)
    vocabulary = target_probs.shape[2]
    residual = rule.residual.gather(1, slot.unsqueeze(2).expand(-1, -1, vocabulary)).squeeze(1)
    whole = target_probs.gather(1, last.unsqueeze(2).expand(-1, -1, vocabulary)).squeeze(1)
    return torch.where(has_children.any(1, keepdim=True), residual, whole)


def _walk(tree: TokenTree, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Go down as far as nodes are accepted, Bool [B, N], the root aside; path and counts, as in `Verified`."""
    nodes, device = tree.tokens.shape[1], tree.tokens.device
    refused = ~accepted
    refused[:, 0] = False
    off_path = (refused.unsqueeze(1) & tree.ancestor_mask).any(2)
    last = tree.depths.masked_fill(off_path, -1).argmax(1, keepdim=True)
    on_path = tree.ancestor_mask.gather(1, last.unsqueeze(2).expand(-1, -1, nodes)).squeeze(1)
    path = torch.where(on_path, torch.arange(nodes, device=device), last).sort(1).values
    return path[:, : tree.max_depth + 1], on_path.sum(1)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Probabilities [..., V]; where all weights are zero, which only rounding brings about, `otherwise`."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, otherwise)
