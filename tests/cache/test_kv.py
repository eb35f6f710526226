"""The cache: slots, masks, what a forward and a keep cost, and equality with a fresh prefill."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clover.cache import KVCache
from clover.target import TargetModel
from tests.families import FAMILIES, PARENTS, VOCAB, ancestor_mask, prefill, run_tree, tiny_model

PATHS = [[0, 2, 5, 6], [0, 1, 3, 3], [0, 0, 0, 0]]
COUNTS = [4, 3, 1]


class CountedOps(TorchDispatchMode):
    """Counts the tensor operations run inside it, leaving out views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def small_cache(batch_size: int = 3, num_layers: int = 2, capacity: int = 8) -> KVCache:
    return KVCache.new((num_layers, 2, 3, 5), batch_size, capacity, torch.zeros((), dtype=torch.float64))


def write(cache: KVCache, num_tokens: int, label: float = 0.0) -> None:
    """A forward whose key and value of row b, token i are ``label + 100 b + i`` in every layer."""
    cache.begin(num_tokens)
    numbers = label + 100.0 * torch.arange(cache.batch_size)[:, None] + torch.arange(num_tokens)
    for layer in range(len(cache)):
        shapes = [(cache.batch_size, 2, num_tokens, width) for width in (3, 5)]
        cache.update(*(numbers[:, None, :, None].expand(shape) for shape in shapes), layer)


def texts_in(cache: KVCache) -> list[list[float]]:
    """The numbers in each row's slots, after checking that all layers, heads, keys and values agree."""
    rows = []
    for row, length in enumerate(cache.lengths):
        keys, values = cache.keys[:, row, :, :length], cache.values[:, row, :, :length]
        assert (keys == keys[:1, :1, :, :1]).all() and (values == keys[:1, :1, :, :1]).all()
        rows.append(keys[0, 0, :, 0].tolist())
    return rows


def test_update_returns_views_of_the_preallocated_tensors() -> None:
    cache = small_cache()
    storage = cache.keys.data_ptr()
    for step in range(4):
        cache.begin(2)
        keys, values = cache.update(torch.ones(3, 2, 2, 3), torch.ones(3, 2, 2, 5), 1)
        assert keys.shape == (3, 2, 2 * step + 2, 3) and values.shape == (3, 2, 2 * step + 2, 5)
        assert keys.untyped_storage().data_ptr() == storage
        cache.commit([2, 2, 2])
    assert cache.capacity == 8 and cache.keys.data_ptr() == storage


@pytest.mark.parametrize("counts", [[3, 3, 3], [3, 1, 2]])
def test_update_is_one_copy_each_whatever_the_lengths(counts: list[int]) -> None:
    cache = small_cache()
    write(cache, 3)
    cache.commit(counts)
    cache.begin(4)
    keys, values = torch.ones(3, 2, 4, 3), torch.ones(3, 2, 4, 5)
    with CountedOps() as ops:
        cache.update(keys, values, 0)
    assert ops.count == 2


def test_commit_takes_a_different_number_of_each_row() -> None:
    cache = small_cache()
    write(cache, 3)
    cache.commit([3, 1, 2])
    write(cache, 2, label=10.0)
    cache.commit([2, 2, 0])
    assert cache.lengths == [5, 3, 2]
    assert texts_in(cache) == [[0, 1, 2, 10, 11], [100, 110, 111], [200, 201]]


@pytest.mark.parametrize("start", [[2, 2, 2], [2, 1, 0]])
def test_keep_gathers_the_accepted_path_of_each_row(start: list[int]) -> None:
    cache = small_cache()
    write(cache, 2)
    cache.commit(start)
    write(cache, 7, label=10.0)
    cache.keep(torch.tensor(PATHS), COUNTS)
    kept = [
        [10.0 + 100 * row + node for node in path[:n]] for row, (path, n) in enumerate(zip(PATHS, COUNTS))
    ]
    before = [[100.0 * row + i for i in range(n)] for row, n in enumerate(start)]
    assert texts_in(cache) == [old + new for old, new in zip(before, kept)]


def test_the_example_of_the_page_is_right() -> None:
    """Tokens abc and d are 1, 2, 3 and 101; the nodes of row b are 10 + 100 b and following."""
    cache = KVCache.new((1, 2, 3, 5), 2, 8, torch.zeros(()))
    write(cache, 3, label=1.0)
    cache.commit([3, 1])
    write(cache, 4, label=10.0)
    assert cache.keys[0, :, 0, 3:7, 0].tolist() == [[10, 11, 12, 13], [110, 111, 112, 113]]
    cache.keep(torch.tensor([[0, 2, 2], [0, 1, 3]]), [2, 3])
    assert cache.lengths == [5, 4] and texts_in(cache) == [[1, 2, 3, 10, 12], [101, 110, 111, 113]]


@pytest.mark.parametrize("start", [[2, 2, 2], [2, 1, 0]])
def test_keep_costs_the_same_for_any_number_of_layers(start: list[int]) -> None:
    costs = []
    for num_layers in (1, 6):
        cache = small_cache(num_layers=num_layers, capacity=16)
        write(cache, 2)
        cache.commit(start)
        write(cache, 7)
        with CountedOps() as ops:
            cache.keep(torch.tensor(PATHS), COUNTS)
        costs.append(ops.count)
    assert costs[0] == costs[1] <= 12


def test_keep_of_a_contiguous_path_moves_nothing() -> None:
    cache = small_cache(batch_size=2)
    write(cache, 4)
    path = torch.tensor([[0, 1, 2, 3], [0, 1, 3, 3]])
    with CountedOps() as ops:
        cache.keep(path, [4, 2])
    assert ops.count == 0
    assert texts_in(cache) == [[0, 1, 2, 3], [100, 101]]


def test_growth_doubles_and_keeps_the_text() -> None:
    cache = small_cache(capacity=4)
    capacities = []
    for step in range(20):
        write(cache, 1, label=float(step))
        cache.commit([1, 1, 1])
        capacities.append(cache.capacity)
    assert sorted(set(capacities)) == [4, 8, 16, 32]
    assert texts_in(cache)[1] == [100.0 + step for step in range(20)]
    write(cache, 500)
    assert cache.capacity == 520


def test_mask_hides_the_gap_of_shorter_rows() -> None:
    cache = small_cache()
    write(cache, 2)
    cache.commit([2, 1, 0])
    mask = cache.attention_mask(ancestor_mask([-1, 0, 0]).expand(3, -1, -1))
    assert mask.shape == (3, 1, 3, 5) and mask.dtype == torch.bool
    for row, length in enumerate(cache.lengths):
        assert mask[row, 0, :, :length].all() and not mask[row, 0, :, length:2].any()
        assert (mask[row, 0, :, 2:] == ancestor_mask([-1, 0, 0])).all()
    assert cache.positions(2).tolist() == [[2, 3], [1, 2], [0, 1]]


def test_mask_and_positions_of_equal_rows() -> None:
    cache = small_cache()
    write(cache, 2)
    cache.commit([2, 2, 2])
    mask = cache.causal_mask(2)
    assert mask.tolist() == [[[[True, True, True, False], [True, True, True, True]]]] * 3
    assert cache.positions(2).tolist() == [[2, 3]] * 3
    assert cache.get_mask_sizes(2, 0) == (4, 0) and cache.get_seq_length() == 2


def test_drop_moves_the_last_row_and_crop_shortens() -> None:
    cache = small_cache()
    write(cache, 3)
    cache.commit([3, 1, 2])
    cache.drop(0)
    assert cache.batch_size == 2 and texts_in(cache) == [[200, 201], [100]]
    cache.crop([1, 1])
    write(cache, 2, label=10.0)
    cache.commit([1, 2])
    assert texts_in(cache) == [[200, 10], [100, 110, 111]]
    cache.drop(1)
    cache.drop(0)
    assert cache.batch_size == 0 and cache.length == 0 and cache.uniform


def test_one_long_text_does_not_widen_the_rows_for_good() -> None:
    cache, other = small_cache(2), small_cache(1)
    write(cache, 3)
    cache.commit([3, 1])
    write(other, 1500, label=50.0)
    other.commit([1500])
    cache.insert(other)
    assert cache.capacity == 1500
    cache.drop(0)
    assert cache.capacity == 1500, "the long one is still there"
    cache.drop(0)
    assert cache.capacity == cache.storage[1].shape[3] == 512 and texts_in(cache) == [[100]]
    write(cache, 2, label=7.0)
    cache.commit([2])
    assert texts_in(cache) == [[100, 7, 8]]


def test_slots_stay_while_they_are_few_or_there_is_no_text_or_their_number_is_fixed() -> None:
    for capacity, tokens, fixed in ((1024, 1, False), (4096, 0, False), (4096, 1024, False), (4096, 1, True)):
        cache = small_cache(2, capacity=capacity)
        if fixed:
            cache.begin_fixed(1, 1)
        if tokens:
            write(cache, tokens)
            cache.commit([tokens] * 2)
        place = cache.keys.data_ptr()
        cache.drop(0)
        assert cache.capacity == capacity and cache.keys.data_ptr() == place


def test_the_first_rows_run_alone_and_the_others_keep_their_text() -> None:
    cache = small_cache(capacity=4)
    write(cache, 3)
    cache.commit([3, 3, 2])
    with cache.first_rows(2):
        write(cache, 2, label=50.0)
        assert cache.capacity == 8 and cache.uniform and cache.positions(1).tolist() == [[3], [3]]
        cache.commit([2, 1])
    assert cache.lengths == [5, 4, 2]
    assert texts_in(cache) == [[0, 1, 2, 50, 51], [100, 101, 102, 150], [200, 201]]
    with pytest.raises(RuntimeError), cache.first_rows(1):
        raise RuntimeError
    assert cache.batch_size == 3


@pytest.mark.parametrize("num_layers", [1, 6])
def test_insert_copies_the_text_of_the_new_rows_alone(num_layers: int) -> None:
    cache, other = small_cache(4, num_layers), small_cache(2, num_layers, capacity=3)
    for row in (3, 2):
        cache.drop(row)
    write(cache, 3)
    cache.commit([3, 1])
    write(other, 2, label=50.0)
    other.commit([1, 2])
    place, before = cache.keys.data_ptr(), cache.keys.clone()
    with CountedOps() as ops:
        cache.insert(other)
    assert ops.count == 2
    assert cache.keys.data_ptr() == place and torch.equal(cache.keys[:, :2], before)
    assert cache.lengths == [3, 1, 1, 2]
    assert texts_in(cache) == [[0, 1, 2], [100], [50], [150, 151]]
    cache.drop(0)
    write(cache, 1, label=7.0)
    cache.commit([1, 1, 1])
    assert texts_in(cache) == [[150, 151, 7], [100, 107], [50, 207]]


def test_insert_grows_for_a_longer_text_and_for_more_rows() -> None:
    cache, other = small_cache(2, capacity=2), small_cache(1, capacity=8)
    cache.drop(0)
    write(cache, 2)
    cache.commit([2])
    write(other, 7, label=10.0)
    other.commit([7])
    cache.insert(other)
    assert cache.capacity == 7 and texts_in(cache) == [[0, 1], [*range(10, 17)]]
    assert cache.storage[0].shape[1] == 2
    for _ in range(3):
        cache.insert(other)
    assert cache.capacity == 7 and texts_in(cache) == [[0, 1], *[[*range(10, 17)]] * 4]
    assert cache.storage[0].shape[1] == 8
    write(cache, 1, label=30.0)
    cache.commit([1] * 5)
    assert [text[-1] for text in texts_in(cache)] == [30, 130, 230, 330, 430]


def test_a_cache_without_rows_takes_some_in() -> None:
    cache, other = small_cache(1), small_cache(1)
    cache.drop(0)
    write(other, 3)
    other.commit([3])
    cache.insert(other)
    assert texts_in(cache) == [[0, 1, 2]] and cache.length == 3


def test_large_caches_grow_a_little_at_a_time() -> None:
    cache = KVCache.new((1, 1, 1, 1), 1, 3000, torch.zeros(()))
    for more in (3001, 1025):
        cache.begin(more)
        cache.commit([more])
    assert cache.capacity == 5048


def test_unannounced_forward_is_refused() -> None:
    cache = small_cache()
    with pytest.raises(AssertionError, match="begin"):
        cache.update(torch.ones(3, 2, 1, 3), torch.ones(3, 2, 1, 5), 0)


def test_a_cache_made_in_inference_mode_is_usable_outside() -> None:
    with torch.inference_mode():
        cache = small_cache()
        write(cache, 2)
        cache.commit([2, 2, 2])
    write(cache, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_keep_the_cache_is_that_of_a_fresh_prefill(family: str) -> None:
    target = TargetModel(tiny_model(family))
    tokens = torch.randint(VOCAB, (3, 12))
    cache = target.new_cache(3, 4)  # too small: grows twice
    prefill(target, cache, tokens[:, :4], [4, 2, 3])
    texts = [tokens[row, :n].tolist() for row, n in enumerate(cache.lengths)]
    for tree in (tokens[:, 4:11], tokens[:, 5:12]):
        run_tree(target, cache, tree, PARENTS)
        cache.keep(torch.tensor(PATHS), COUNTS)
        for row, text in enumerate(texts):
            text += [tree[row, node].item() for node in PATHS[row][: COUNTS[row]]]
    for row, text in enumerate(texts):
        fresh = target.new_cache(1, 32)
        prefill(target, fresh, torch.tensor([text]), [len(text)])
        assert cache.lengths[row] == len(text)
        for kept, expected in ((cache.keys, fresh.keys), (cache.values, fresh.values)):
            torch.testing.assert_close(
                kept[:, row, :, : len(text)], expected[:, 0, :, : len(text)], rtol=1e-6, atol=1e-9
            )
