"""Recursive rejection sampling: against a plain walk, and exactly, with all random numbers integrated out."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from itertools import permutations

import pytest
import torch
from torch import Tensor

from clover import verify_host
from clover.rejection import draw_rule
from clover.tree import Draws, TokenTree, TreeShape
from clover.verify import verify_drawn

VOCAB = 5
FAN = TreeShape.from_paths([(0,), (1,), (2,)])


def slow_walk(
    tree: TokenTree, row: int, target_probs: Tensor, tests: Tensor, bonus: Tensor
) -> tuple[list[int], list[int]]:
    """Nodes of the path and emitted tokens, one child after another."""
    assert tree.draws is not None
    nodes, children = tree.draws.nodes[row].tolist(), tree.draws.children[row].tolist()
    path, emitted = [0], []
    while True:
        target = target_probs[row, path[-1]].tolist()
        accepted = None
        if path[-1] in nodes:
            slot = nodes.index(path[-1])
            draft = tree.draws.draft_probs[row, slot].tolist()
            for child in children[slot]:
                if child < 0 or tree.parents[row, child] < 0:
                    continue
                token = int(tree.tokens[row, child])
                if tests[row, child] < min(1.0, target[token] / draft[token]):
                    accepted = child
                    break
                residual = [max(r - q, 0.0) for r, q in zip(target, draft)]
                target = [r / sum(residual) for r in residual] if sum(residual) else target
                draft[token] = 0.0
                draft = [q / sum(draft) for q in draft] if sum(draft) else draft
        if accepted is None:
            break
        path.append(accepted)
        emitted.append(int(tree.tokens[row, accepted]))
    scores = torch.tensor(target, dtype=torch.float64).log() + bonus[row, len(path) - 1]
    emitted.append(int(scores.argmax()))
    return path, emitted


def probabilities(shape: tuple[int, ...], rng: random.Random) -> Tensor:
    """Sharp and flat distributions, some with tokens that are impossible."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * rng.choice((0.3, 1.0, 3.0))
    if rng.random() < 0.5:
        logits[..., rng.randrange(shape[-1])] = -torch.inf
    return logits.softmax(-1)


def drawn_tree(shape: TreeShape, rows: int, vocab: int, rng: random.Random) -> TokenTree:
    """Put tokens that the draft offers on the shape, distinct among siblings; the rest is padding."""
    expanded = sorted(set(shape.parents[1:]))
    children = [[node for node, parent in enumerate(shape.parents) if parent == at] for at in expanded]
    padded = [[*nodes, *[-1] * (max(map(len, children)) - len(nodes))] for nodes in children]
    draft_probs = probabilities((rows, len(expanded), vocab), rng)
    tokens = torch.zeros(rows, len(shape.parents), dtype=torch.long)
    missing = torch.zeros_like(tokens, dtype=torch.bool)
    for row in range(rows):
        for slot, nodes in enumerate(children):
            offered = [token for token in range(vocab) if draft_probs[row, slot, token] > 0]
            rng.shuffle(offered)
            for node in nodes:
                missing[row, node] = not offered or rng.random() < 0.05
                tokens[row, node] = offered.pop() if offered else 0
    draws = Draws(
        draft_probs, torch.tensor(expanded).expand(rows, -1), torch.tensor(padded).expand(rows, -1, -1)
    )
    return dataclasses.replace(TokenTree.from_shape(shape, tokens).without(missing), draws=draws)


def random_shape(nodes: int, rng: random.Random) -> TreeShape:
    paths: list[tuple[int, ...]] = [()]
    for _ in range(nodes):
        parent = rng.choice(paths)
        paths.append((*parent, sum(path[:-1] == parent for path in paths if path)))
    return TreeShape.from_paths(paths[1:])


def probs_after(target_probs: Tensor, paths: Tensor) -> Tensor:
    return target_probs[torch.arange(len(paths)), paths[:, -1]]


@pytest.mark.parametrize("vocab", [3, 7, 40])
def test_walks_are_those_of_the_plain_rule(vocab: int) -> None:
    rng, lengths = random.Random(vocab), set()
    generator = torch.Generator().manual_seed(vocab)
    for nodes in (1, 2, 4, 9, 25):
        for _ in range(6):
            tree = drawn_tree(random_shape(nodes, rng), 6, vocab, rng)
            target_probs = probabilities((6, nodes + 1, vocab), rng)
            tests = torch.rand(6, nodes + 1, generator=generator, dtype=torch.float64)
            bonus = torch.randn(6, tree.max_depth + 1, vocab, generator=generator)
            verified = verify_drawn(tree, target_probs, tests, bonus)
            after = partial(probs_after, target_probs)
            on_host = verify_host.verify_drawn(tree, after, tests, bonus)
            assert on_host.path.shape == on_host.tokens.shape == (6, int(on_host.counts.max()))
            for row in range(6):
                path, emitted = slow_walk(tree, row, target_probs, tests, bonus)
                assert on_host.path[row, : len(path)].tolist() == path and on_host.counts[row] == len(path)
                padding = on_host.path.shape[1] - len(path)
                assert on_host.tokens[row].tolist() == emitted + [0] * padding
                padding = tree.max_depth + 1 - len(path)
                assert verified.counts[row] == len(path)
                assert verified.path[row].tolist() == path + path[-1:] * padding
                assert verified.tokens[row].tolist() == emitted + [0] * padding
                lengths.add(len(path))
    assert len(lengths) > 2


def emitted_probs(target: Tensor, draft: Tensor, draws: int = 3, slip: str = "") -> Tensor:
    """The exact distribution of the first emitted token, [V]: every order of draws, every outcome of the tests."""
    orders = torch.tensor(list(permutations(range(VOCAB), draws)))
    chance = torch.ones(len(orders), dtype=torch.float64)
    left = torch.ones_like(chance)
    for token in orders.unbind(1):
        chance *= torch.where(draft[token] > 0, draft[token] / left.clamp(min=1e-300), 0.0)
        left = left - draft[token]
    orders, chance = orders[chance > 0], chance[chance > 0]
    rows = len(orders)
    tested = orders.flip(1) if slip == "other order" else orders
    tree = TokenTree.from_shape(FAN, torch.cat([torch.zeros(rows, 1, dtype=torch.long), tested], dim=1))
    nodes, children = torch.zeros(rows, 1, dtype=torch.long), torch.tensor([[[1, 2, 3]]]).expand(rows, -1, -1)
    draws_of_rows = Draws(draft.expand(rows, 1, -1), nodes, children)
    thresholds, left = draw_rule(tree, draws_of_rows, target.expand(rows, 1, -1))
    emitted, reached = torch.zeros(VOCAB, dtype=torch.float64), chance
    for rank in range(draws):
        threshold = thresholds[:, 0, rank]
        emitted.index_add_(0, tested[:, rank], reached * threshold)
        reached = reached * (1 - threshold)
    residual = target.expand(rows, -1) if slip == "bonus from the target" else left[:, 0]
    return emitted + reached @ residual


def distributions(case: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case)
    target, draft = torch.randn(2, VOCAB, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    if case % 5 == 1:
        target = target.masked_fill(target < target.median(), 0.0)
        target = target / target.sum()
    return target, target if case == 0 else draft


def total_variation(case: int, slip: str = "") -> float:
    target, draft = distributions(case)
    return float((emitted_probs(target, draft, slip=slip) - target).abs().sum() / 2)


def test_emitted_tokens_have_exactly_the_target_distribution() -> None:
    assert max(total_variation(case) for case in range(50)) < 1e-12


@pytest.mark.parametrize("slip", ["other order", "bonus from the target"])
def test_the_same_sums_find_a_slip(slip: str) -> None:
    assert max(total_variation(case, slip) for case in range(50)) > 0.05


def test_a_draft_that_equals_the_target_is_never_refused() -> None:
    rng = random.Random(0)
    probs = probabilities((200, 1, 50), rng)
    tree = TokenTree.from_shape(
        TreeShape.chain(1), torch.stack([torch.zeros(200).long(), probs[:, 0].argmax(1)], 1)
    )
    slots = torch.zeros(200, 1, dtype=torch.long)
    thresholds, _ = draw_rule(tree, Draws(probs, slots, (slots + 1).unsqueeze(2)), probs)
    assert thresholds.eq(1).all()


def test_greedy_targets_accept_their_own_token_alone() -> None:
    """Also where the draft is sure of another token, and where it is sure of this one."""
    target = torch.nn.functional.one_hot(torch.tensor([[2] * 4] * 4), VOCAB).double()
    draft = torch.full((4, 1, VOCAB), 0.2, dtype=torch.float64)
    draft[1] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    draft[2] = torch.tensor([0.0, 1e-12, 1 - 2e-12, 1e-12, 0.0])
    tokens = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1, 3], [0, 0, 1, 4]])
    draws = Draws(draft, torch.zeros(4, 1, dtype=torch.long), torch.tensor([[[1, 2, 3]]]).expand(4, -1, -1))
    tree = dataclasses.replace(TokenTree.from_shape(FAN, tokens), draws=draws)
    for number in (1e-9, 0.5, 1 - 1e-9):
        numbers = torch.full((4, 4), number, dtype=torch.float64)
        verified = verify_drawn(tree, target, numbers, torch.zeros(4, 2, VOCAB))
        assert verified.counts.tolist() == [2, 1, 2, 1]
        assert verified.tokens[:, 0].tolist() == [2] * 4
