import dataclasses
import itertools

import pytest
import torch
from scipy.stats import chi2

from clover.sampling import Sampler, SamplingParams
from clover.tree import CLOVER2_TREE, TokenTree, TreeShape
from clover.verify import verify
from tests.slow_sampling import slow_probs

VOCAB = 10
PROMPT = [3, 7, 3]
FALSE_ALARM_RATE = 1e-4


def slow_walk(tokens: list[int], parents: list[int], choices: list[int]) -> tuple[list[int], list[int]]:
    """The longest path that the choices lead down, and the tokens that it emits."""

    def paths(path: list[int]) -> list[list[int]]:
        children = [node for node, parent in enumerate(parents) if parent == path[-1]]
        agreeing = [node for node in children if tokens[node] == choices[path[-1]]]
        return [path, *(longer for node in agreeing for longer in paths([*path, node]))]

    longest = max(paths([0]), key=lambda path: (len(path), -path[-1]))
    return longest, [choices[node] for node in longest]


def assert_as_slow_walk(tree: TokenTree, choices: torch.Tensor) -> None:
    verified = verify(tree, choices)
    width = tree.max_depth + 1
    assert verified.path.shape == verified.tokens.shape == (len(choices), width)
    for row in range(len(choices)):
        path, emitted = slow_walk(
            tree.tokens[row].tolist(), tree.parents[row].tolist(), choices[row].tolist()
        )
        padding = width - len(path)
        assert verified.counts[row] == len(path)
        assert verified.path[row].tolist() == path + path[-1:] * padding
        assert verified.tokens[row].tolist() == emitted + [0] * padding


def random_parents(rows: int, nodes: int, generator: torch.Generator) -> torch.Tensor:
    limits = torch.arange(nodes).expand(rows, -1)
    parents = (torch.rand(rows, nodes, generator=generator) * limits).long()
    parents[:, 0] = -1
    return parents


def test_every_tree_of_four_nodes_over_two_tokens():
    texts = list(itertools.product((0, 1), repeat=4))
    for row in itertools.product((-1,), (0,), (0, 1), (-1, 0, 1, 2)):
        tokens = torch.tensor([text for text in texts for _ in texts])
        tree = TokenTree.from_parents(tokens, torch.tensor(row).expand(len(tokens), -1))
        assert_as_slow_walk(tree, torch.tensor(texts * len(texts)))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_random_trees(rows):
    generator = torch.Generator().manual_seed(rows)
    for nodes in (1, 2, 5, 12, 26):
        for _ in range(10):
            tokens = torch.randint(2, (rows, nodes), generator=generator)
            tree = TokenTree.from_parents(tokens, random_parents(rows, nodes, generator))
            assert_as_slow_walk(tree, torch.randint(2, (rows, nodes), generator=generator))


@pytest.mark.parametrize("shape", [CLOVER2_TREE, TreeShape.chain(5)])
def test_static_trees(shape):
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tokens, choices = torch.randint(3, (2, 4, len(shape.parents)), generator=generator)
        assert_as_slow_walk(TokenTree.from_shape(shape, tokens), choices)


def test_padding_is_never_accepted():
    tree = TokenTree.from_parents(torch.tensor([[1, 1, 1]]), torch.tensor([[-1, -1, -1]]), max_depth=2)
    verified = verify(tree, torch.tensor([[1, 1, 1]]))
    assert (verified.counts.item(), verified.path.tolist()) == (1, [[0, 0, 0]])


# A toy target: logits by the last token. What else is in the text matters through the repetition penalty.
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1.5


def random_tree(root: torch.Tensor, nodes: int, generator: torch.Generator) -> TokenTree:
    """Grow another tree for each row. Every second node has the likeliest token; siblings may be equal."""
    parents = random_parents(len(root), nodes, generator)
    tokens = torch.randint(VOCAB, parents.shape, generator=generator)
    tokens[:, :1] = root
    for node in range(1, nodes, 2):
        tokens[:, node] = TABLE[tokens.gather(1, parents[:, node : node + 1])].argmax(-1).squeeze(1)
    return TokenTree.from_parents(tokens, parents)


def decode(params: list[SamplingParams], length: int, nodes: int, seed: int = 0) -> list[list[int]]:
    """Continue each row's prompt with trees of so many random nodes; one node is plain decoding."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [[own.seed % VOCAB, 1, own.seed % VOCAB] for own in params]
    sampler = Sampler(params, prompts, VOCAB, "cpu")
    root = torch.tensor([prompt[-1:] for prompt in prompts])
    texts: list[list[int]] = [[] for _ in params]
    while min(map(len, texts)) < length:
        tree = random_tree(root, nodes, generator)
        verified = verify(tree, sampler.choose(TABLE[tree.tokens], tree))
        sampler.commit(verified.tokens, verified.counts)
        root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1)
        for text, tokens, count in zip(
            texts, verified.tokens.tolist(), verified.counts.tolist(), strict=True
        ):
            text.extend(tokens[:count])
    return [text[:length] for text in texts]


def test_text_is_the_same_with_every_tree_and_without_one():
    params = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=1.5, top_p=0.9, repetition_penalty=1.2, seed=2),
        SamplingParams(temperature=0.7, top_k=4, banned_tokens=(2,), seed=3),
        SamplingParams(temperature=1.0, min_p=0.05, logit_bias={4: 1.0}, seed=4),
    ]
    plain = decode(params, length=60, nodes=1)
    assert all(len(set(text)) > 2 for text in plain)
    for nodes, seed in [(2, 0), (4, 1), (9, 2), (20, 3)]:
        assert decode(params, 60, nodes, seed) == plain
        assert decode(params[::-1], 60, nodes, seed) == plain[::-1]
    assert [decode([own], 60, 9)[0] for own in params] == plain


def toy_probs(params: SamplingParams, text: list[int]) -> list[float]:
    """The toy's distribution after a text."""
    return slow_probs(TABLE[text[-1]].tolist(), params, text)


def exact_pairs(params: SamplingParams) -> torch.Tensor:
    """The joint distribution of the first two new tokens, float64 [V * V]."""
    first = toy_probs(params, PROMPT)
    pairs = [[first[a] * b for b in toy_probs(params, [*PROMPT, a])] for a in range(VOCAB)]
    return torch.tensor(pairs, dtype=torch.float64).flatten()


def drawn_pairs(params: SamplingParams, rows: int, slip: str = "") -> torch.Tensor:
    """The first two new tokens of many rows, [rows] numbers below V * V, from random trees of 5 nodes."""
    generator = torch.Generator().manual_seed(1)
    own = [dataclasses.replace(params, seed=seed) for seed in range(rows)]
    sampler = Sampler(own, [PROMPT] * rows, VOCAB, "cpu")
    root, steps = torch.full((rows, 1), PROMPT[-1]), []
    for _ in range(2):
        tree = random_tree(root, 5, generator)
        choices = sampler.choose(TABLE[tree.tokens], with_slip(tree, slip))
        if slip == "bonus token from the raw softmax":
            choices = with_raw_bonus(tree, choices, generator)
        verified = verify(tree, choices)
        sampler.commit(verified.tokens, verified.counts)
        root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1)
        steps.append(verified)
    second = torch.where(steps[0].counts > 1, steps[0].tokens[:, 1], steps[1].tokens[:, 0])
    return steps[0].tokens[:, 0] * VOCAB + second


def with_slip(tree: TokenTree, slip: str) -> TokenTree:
    """The tree as a sampler that makes this mistake would see it."""
    if slip == "one random number for two draws":
        return dataclasses.replace(tree, depths=torch.zeros_like(tree.depths))
    if slip == "penalty without the path":
        return dataclasses.replace(tree, ancestor_mask=tree.ancestor_mask & (tree.depths == 0).unsqueeze(1))
    return tree


def with_raw_bonus(tree: TokenTree, choices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The choices, but those that no child carries drawn anew, with no processor."""
    children = tree.parents.unsqueeze(1) == torch.arange(tree.tokens.shape[1]).unsqueeze(1)
    offered = (children & (tree.tokens.unsqueeze(1) == choices.unsqueeze(2))).any(2)
    raw = torch.multinomial(TABLE.softmax(-1)[tree.tokens].flatten(0, 1), 1, generator=generator)
    return torch.where(offered, choices, raw.view_as(choices))


def p_value(drawn: torch.Tensor, exact: torch.Tensor) -> float:
    """Pearson's chi-square test; cells that expect less than 5 draws are taken together."""
    counts, expected = drawn.bincount(minlength=len(exact)).double(), exact * len(drawn)
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)])
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum().item(), len(counts) - 1))


@pytest.mark.parametrize("temperature", [1.0, *(pytest.param(t, marks=pytest.mark.long) for t in (0.5, 1.5))])
def test_sampled_text_has_the_target_distribution(temperature):
    params = SamplingParams(temperature=temperature, top_p=0.9, repetition_penalty=1.5)
    assert p_value(drawn_pairs(params, 40_000), exact_pairs(params)) > FALSE_ALARM_RATE


@pytest.mark.parametrize(
    "slip",
    ["", "one random number for two draws", "penalty without the path", "bonus token from the raw softmax"],
)
def test_the_same_test_with_fewer_draws_finds_a_slip(slip):
    params = SamplingParams(temperature=1.5, repetition_penalty=4.0)
    alarm = p_value(drawn_pairs(params, 20_000, slip), exact_pairs(params)) < FALSE_ALARM_RATE
    assert alarm == bool(slip)
