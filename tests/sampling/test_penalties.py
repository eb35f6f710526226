"""Frequency and presence penalties: those of a slow reference, at every node, in every company."""

from __future__ import annotations

import random
from collections import Counter

import torch

from clover.sampling import Sampler, SamplingParams
from clover.tree import CLOVER2_TREE, TokenTree

V = 30
PARAMS = [
    SamplingParams(temperature=1.0, frequency_penalty=0.9, presence_penalty=1.7),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, frequency_penalty=-0.6, repetition_penalty=1.4),
    SamplingParams(temperature=1.0, presence_penalty=-2.0, logit_bias={3: 2.0}),
]


def expected_probs(
    logits: list[float], params: SamplingParams, prompt: list[int], new: list[int]
) -> list[float]:
    """One distribution [V], token by token: the prompt counts for the repetition penalty alone."""
    times, scores = Counter(new), []
    for token, score in enumerate(logits):
        score += params.logit_bias.get(token, 0.0)
        if token in prompt or token in times:
            score *= params.repetition_penalty if score < 0 else 1 / params.repetition_penalty
        score -= params.frequency_penalty * times[token] + params.presence_penalty * (token in times)
        scores.append(score)
    return torch.tensor(scores, dtype=torch.float64).softmax(-1).tolist()


def path_tokens(tree: TokenTree, row: int, node: int) -> list[int]:
    """Drafted tokens from below the root down to a node."""
    tokens: list[int] = []
    while node:
        tokens.append(int(tree.tokens[row, node]))
        node = int(tree.parents[row, node])
    return tokens


def check(
    sampler: Sampler, params: list[SamplingParams], prompts: list[list[int]], new: list[list[int]]
) -> None:
    rows, nodes = len(params), len(CLOVER2_TREE.parents)
    torch.manual_seed(rows)
    tokens = torch.randint(0, 6, (rows, nodes))  # few tokens: paths repeat themselves and the text
    tokens[:, 0] = torch.tensor([text[-1] for text in new])
    tree, logits = (
        TokenTree.from_shape(CLOVER2_TREE, tokens),
        torch.randn(rows, nodes, V, dtype=torch.float64),
    )
    found = sampler.target_probs(logits, tree)
    for row in range(rows):
        for node in range(nodes):
            text = [*new[row], *path_tokens(tree, row, node)]
            expected = expected_probs(logits[row, node].tolist(), params[row], prompts[row], text)
            assert torch.allclose(found[row, node], torch.tensor(expected).double(), atol=1e-9), (row, node)


def committed(params: list[SamplingParams], prompts: list[list[int]], new: list[list[int]]) -> Sampler:
    """A sampler after a commit of texts of different length; what pads them is a token that would tell."""
    sampler, width = Sampler(params, prompts, V, "cpu"), max(map(len, new))
    padded = torch.tensor([[*text, *[5] * (width - len(text))] for text in new])
    sampler.commit(padded, torch.tensor(list(map(len, new))))
    return sampler


def texts(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(6) for _ in range(rng.randrange(1, 6))] for _ in range(count)]


def test_every_node_has_the_penalties_of_its_own_path() -> None:
    prompts, new = texts(1, 4), texts(2, 4)
    check(committed(PARAMS, prompts, new), PARAMS, prompts, new)


def test_rows_keep_their_counts_when_others_join_and_leave() -> None:
    prompts, new = texts(3, 4), texts(4, 4)
    for first in ([1], [1, 0], [3, 2, 1]):  # the first rows have no penalty, or other ones
        second = [row for row in range(4) if row not in first]
        sampler, other = (
            committed([PARAMS[r] for r in rows], [prompts[r] for r in rows], [new[r] for r in rows])
            for rows in (first, second)
        )
        sampler.insert(other)
        order = [*first, *second]
        check(sampler, [PARAMS[r] for r in order], [prompts[r] for r in order], [new[r] for r in order])
        kept = [2, 0, 3]
        sampler.select(kept)
        order = [order[at] for at in kept]
        check(sampler, [PARAMS[r] for r in order], [prompts[r] for r in order], [new[r] for r in order])
