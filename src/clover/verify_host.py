"""Recursive rejection sampling as loops on the host: much faster on a CPU than `clover.verify.verify_drawn`.

Paths are as wide as the longest one. Shapes: as in `clover.verify`; A nodes of a path.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clover.rejection import after_refusal
from clover.sampling.numbers import most_probable
from clover.tree import Draws, TokenTree
from clover.verify import Verified


def verify_drawn(
    tree: TokenTree, target_probs: Callable[[Tensor], Tensor], tests: Tensor, bonus: Tensor
) -> Verified:
    """Verify drawn children, as `clover.verify.verify_drawn` does, but compute only the nodes that are reached.

    With 25 nodes it takes 1.4 ms instead of 29 ms for 49,152 tokens of vocabulary, and 0.4 instead of 0.6 ms for 512.

    Args:
        target_probs: returns float64 [B, V], the target's distributions at the last nodes of paths Long [B, A] from the
            root down.
        tree, tests, bonus: see `clover.verify.verify_drawn`.
    """
    draws = tree.draws
    assert draws is not None, "recursive rejection sampling reads how the children were drawn"
    paths, last, depth = [[0] for _ in tree.tokens], [-1] * len(tree.tokens), 0
    nodes, made = draws.nodes.tolist(), tree.tokens.new_tensor
    while unfinished := [row for row, token in enumerate(last) if token < 0]:
        probs = target_probs(made(_filled_up(paths)))
        for row in unfinished:
            child, left = None, probs[row]
            if (node := paths[row][-1]) in nodes[row]:
                child, left = _first_accepted(tree, draws, tests, row, nodes[row].index(node), left)
            if child is None:
                last[row] = int(most_probable(left.log() + bonus[row, depth]))
            else:
                paths[row].append(child)
        depth += 1
    counts, path = made(list(map(len, paths))), made(_filled_up(paths))
    index, end = made(range(path.shape[1])), counts.unsqueeze(1) - 1
    followed = tree.tokens.gather(1, path).roll(-1, dims=1).masked_fill(index > end, 0)
    return Verified(path, counts, torch.where(index == end, made(last).unsqueeze(1), followed))


def _filled_up(paths: Sequence[list[int]]) -> list[list[int]]:
    """Make all paths as long as the longest, by repeating their last nodes."""
    longest = max(map(len, paths))
    return [path + path[-1:] * (longest - len(path)) for path in paths]


def _first_accepted(
    tree: TokenTree, draws: Draws, tests: Tensor, row: int, slot: int, target: Tensor
) -> tuple[int | None, Tensor]:
    """Return the first child of one node that passes its test, if any, and the remaining distribution `target` [V]."""
    draft = draws.draft_probs[row, slot]
    for child in draws.children[row, slot].tolist():
        if child < 0 or int(tree.parents[row, child]) < 0:
            continue
        token = tree.tokens[row, child : child + 1]
        target_prob, draft_prob = float(target[token]), float(draft[token])
        if draft_prob > 0:
            if float(tests[row, child]) < min(target_prob / draft_prob, 1.0):
                return child, target
            target, draft = after_refusal(target, draft, token)
    return None, target
