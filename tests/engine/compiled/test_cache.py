"""The cache of fixed shape: every family, every kind of hidden states, rows of different lengths, and padding."""

from __future__ import annotations

import pytest
import torch

from clover.cache import KVCache
from clover.cache.rows import fixed_capacity
from clover.engine.compiled.cache import FixedCache, run_fixed
from clover.errors import UserError
from clover.target import HIDDEN_STATES, TargetModel
from clover.target.support import check_fixed_shapes
from clover.tree import TokenTree
from tests.families import FAMILIES, PARENTS, VOCAB, ancestor_mask, prefill, run_tree, tiny_config, tiny_model

LENGTHS, PATHS, COUNTS = [12, 7], [[0, 2, 5, 6], [0, 1, 3, 3]], [4, 3]
ROWS, NODES = 4, 9  # what 2 rows and 7 nodes are filled up to


def cache_with_text(target: TargetModel, kind: str = "post_norm") -> KVCache:
    cache = target.new_cache(ROWS, 20)
    cache.drop(3)
    cache.drop(2)
    texts = torch.randint(3, VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    prefill(target, cache, texts, LENGTHS, kind)
    return cache


def run_filled_tree(
    target: TargetModel, cache: KVCache, tokens: torch.Tensor, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tree of PARENTS in shapes filled up to ROWS and NODES: hidden states and what a draft reads."""
    full = torch.zeros(ROWS, NODES, dtype=torch.long)
    full[:2, :7] = tokens
    depths, mask = torch.zeros_like(full), torch.eye(NODES, dtype=torch.bool).repeat(ROWS, 1, 1)
    mask[:2, :7, :7] = ancestor_mask(PARENTS)
    depths[:2, :7] = mask[:2, :7, :7].sum(2) - 1
    cache.begin_fixed(NODES, NODES)
    fixed = FixedCache(cache.storage, cache.row_lengths(ROWS), target.longest_run)
    taps = target.taps(kind)
    with taps.active():
        tree = TokenTree(full, torch.zeros_like(full), depths, mask, NODES)
        output = run_fixed(target, tree, fixed, taps)
    return output.hidden[:2, :7], output.draft_hidden_states[:2, :7]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_tree_gives_what_it_gives_in_its_own_shape(family: str) -> None:
    target = TargetModel(tiny_model(family))
    tokens = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
    for kind in HIDDEN_STATES:
        fixed, cache = cache_with_text(target, kind), cache_with_text(target, kind)
        for _ in range(2):
            cache.begin(7)
            mask = ancestor_mask(PARENTS).expand(2, -1, -1)
            positions, seen = cache.positions(1) + mask.sum(2) - 1, cache.attention_mask(mask)
            expected = target.forward(tokens, positions, cache, seen, kind)
            hidden, read = run_filled_tree(target, fixed, tokens, kind)
            torch.testing.assert_close(hidden, expected.hidden, rtol=0, atol=1e-12)
            torch.testing.assert_close(read, expected.draft_hidden_states, rtol=0, atol=1e-12)
            for one in (cache, fixed):
                one.keep(torch.tensor(PATHS), COUNTS)
        assert fixed.lengths == cache.lengths
        for row, length in enumerate(cache.lengths):
            torch.testing.assert_close(fixed.keys[:, row, :, :length], cache.keys[:, row, :, :length])
            torch.testing.assert_close(fixed.values[:, row, :, :length], cache.values[:, row, :, :length])


@torch.no_grad()
def test_both_kinds_of_forward_may_follow_each_other() -> None:
    target = TargetModel(tiny_model("llama"))
    tokens = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
    mixed, plain = cache_with_text(target), cache_with_text(target)
    for step in range(4):
        expected = run_tree(target, plain, tokens, PARENTS).hidden
        if step % 2:
            found = run_tree(target, mixed, tokens, PARENTS).hidden
        else:
            found, _ = run_filled_tree(target, mixed, tokens, "post_norm")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for one in (mixed, plain):
            one.keep(torch.tensor(PATHS), COUNTS)


def test_plain_text_needs_no_moving() -> None:
    cache = KVCache.new((1, 1, 1, 1), 2, 4, torch.zeros((), dtype=torch.float64))
    for counts in ([2, 1], [1, 2], [0, 2]):
        cache.begin_fixed(2, 2)
        fixed = FixedCache(cache.storage, cache.row_lengths(2), 2**31)
        fixed.begin(2)
        numbers = (10 * torch.arange(2)[:, None] + fixed.positions(2)).double()
        fixed.update(numbers[:, None, :, None], numbers[:, None, :, None], 0)
        cache.commit(counts)
        fixed.commit(torch.tensor(counts))
        assert fixed.positions(1)[:, 0].tolist() == cache.lengths
    assert cache.keys[0, 0, 0, :3, 0].tolist() == [0, 1, 2]
    assert cache.keys[0, 1, 0, :5, 0].tolist() == [10, 11, 12, 13, 14]
    keys, _, mask = fixed.text(0)
    assert keys.shape == (2, 1, 256, 1) and mask is not None and mask.sum((1, 2, 3)).tolist() == [3, 5]


def test_a_draft_sees_the_text_and_its_path() -> None:
    fixed = FixedCache((torch.zeros(1, 2, 1, 8, 1),) * 2, torch.tensor([3, 1]), 2**31)
    mask = fixed.attention_mask(torch.tensor([[[True, False, True]], [[False, True, True]]]))
    assert mask.shape == (2, 1, 1, 8)
    assert mask[0, 0, 0].tolist() == [True, True, True, True, False, True, False, False]
    assert mask[1, 0, 0].tolist() == [True, False, True, True, False, False, False, False]


def test_positions_of_padding_stay_within_the_limit() -> None:
    fixed = FixedCache((torch.zeros(1, 2, 1, 8, 1),) * 2, torch.tensor([3, 5]), 6)
    assert fixed.positions(3).tolist() == [[3, 4, 5], [5, 5, 5]]


def test_capacities_are_few_and_grow_before_the_forward() -> None:
    cache = KVCache.new((1, 1, 1, 1), 2, 5, torch.zeros((), dtype=torch.float64))
    cache.begin_fixed(3, 10)
    assert cache.capacity == 256
    storage = cache.storage[0]
    cache.begin(250)
    cache.commit([250, 250])
    cache.begin_fixed(6, 6)
    assert cache.storage[0] is storage, "what fits is not moved"
    cache.begin_fixed(6, 7)
    assert cache.capacity == 512
    cache.begin(263)
    assert cache.capacity == 1024, "growth in between, by a prompt say, ends at one of the sizes"
    assert [fixed_capacity(slots) for slots in (0, 1, 256, 257, 1025)] == [256, 256, 256, 512, 2048]


def test_a_target_whose_forward_depends_on_the_length_is_refused() -> None:
    config = tiny_config("phi3")
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.5] * 4}
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    with pytest.raises(UserError, match="phi3 cannot be compiled.*longrope"):
        check_fixed_shapes(config)
    check_fixed_shapes(tiny_config("llama"))


def test_the_place_of_every_slot_is_that_of_the_growing_cache() -> None:
    target = TargetModel(tiny_model("llama"))
    cache = cache_with_text(target)
    positions = torch.tensor([[12, 13, 13], [7, 8, 8]])
    cache.begin(3)
    grown = cache.slot_positions(positions)
    assert grown[0].tolist() == [*range(12), 12, 13, 13]
    assert grown[1, :7].tolist() == list(range(7)) and grown[1, 12:].tolist() == [7, 8, 8]
    cache.begin_fixed(3, 3)
    fixed = FixedCache(cache.storage, cache.row_lengths(2), target.longest_run).slot_positions(positions)
    assert fixed[0, :15].tolist() == [*range(12), 12, 13, 13]
    assert fixed[1, :10].tolist() == [*range(7), 7, 8, 8]
