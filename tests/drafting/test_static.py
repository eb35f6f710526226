"""Static trees: which tokens are put where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clover.drafting import StaticDrafter
from clover.tree import CLOVER2_TREE, TreeShape
from tests.drafting.scripted import (
    SAMPLED,
    ScriptedDraft,
    Text,
    fake_target,
    grown,
    paths_of,
    raced,
    sampler_of,
)


def slow_paths(shape: TreeShape, opinion: Callable[[Text], torch.Tensor], text: Text) -> list[Text]:
    """Every node's path: a child of rank r is the r-th best token after its parent."""
    paths: list[Text] = [()]
    for parent, rank in list(zip(shape.parents, shape.ranks, strict=True))[1:]:
        best = opinion(text + paths[parent]).argsort(descending=True, stable=True)
        paths.append((*paths[parent], int(best[rank])))
    return paths[1:]


@pytest.mark.parametrize("shape", [CLOVER2_TREE, TreeShape.chain(4)])
def test_children_are_the_best_of_the_race_in_sampled_rows_and_the_most_probable_in_greedy_ones(
    shape: TreeShape,
) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(60, 60, generator=generator, dtype=torch.float64) * 2
    draft = ScriptedDraft(fake_target(60), lambda text: table[(7 * len(text) + sum(text)) % 60])
    drafter = StaticDrafter(draft, shape)  # type: ignore[arg-type]
    found = grown(drafter, draft, len(SAMPLED), sampler_of(SAMPLED, 60))
    for row, own in enumerate(SAMPLED):
        assert paths_of(found, row) == slow_paths(shape, raced(draft.opinion, own), (row,))
    greedy = grown(drafter, draft, len(SAMPLED))
    assert torch.equal(greedy.tokens[-1], found.tokens[-1])
    for row in range(len(SAMPLED)):
        assert paths_of(greedy, row) == slow_paths(shape, draft.opinion, (row,))
