import dataclasses
import math
import random

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from clover.errors import UserError
from clover.sampling import Sampler, SamplingParams
from clover.sampling.numbers import gumbels
from clover.sampling.warpers import Warpers
from clover.tree import CLOVER2_TREE, TokenTree, TreeShape

ALL = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.02,
    repetition_penalty=1.4,
    logit_bias={3: 4.0, 5: -1.5},
    banned_tokens=(7, 1),
    seed=5,
)
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=0.7, seed=2),
    SamplingParams(temperature=1.3, top_k=5, seed=3),
    SamplingParams(temperature=1.0, top_k=100, seed=4),
    SamplingParams(temperature=1.0, top_k=10**6, seed=4),
    SamplingParams(temperature=0.9, top_p=0.6, seed=5),
    SamplingParams(temperature=2.0, top_p=0.99, seed=6),
    SamplingParams(temperature=1.0, min_p=0.1, seed=7),
    SamplingParams(temperature=1.0, top_k=30, top_p=0.5, seed=8),
    SamplingParams(temperature=1.0, repetition_penalty=1.7, seed=9),
    SamplingParams(temperature=1.0, repetition_penalty=0.6, top_p=0.8, seed=10),
    SamplingParams(temperature=1.0, logit_bias={0: 5.0, 2: -5.0}, seed=11),
    SamplingParams(temperature=1.0, banned_tokens=(0, 1, 2), min_p=0.01, seed=12),
    SamplingParams(repetition_penalty=1.5, logit_bias={1: 1.0}, banned_tokens=(4,)),
    ALL,
]


def slow_probs(params: SamplingParams, logits: torch.Tensor, text: list[int]) -> torch.Tensor:
    """The distribution after `text` [V], by transformers' own processors."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(t,): float(b) for t, b in params.logit_bias.items()}))
    processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.banned_tokens:
        processors.append(NoBadWordsLogitsProcessor([[token] for token in params.banned_tokens]))
    if not params.greedy:
        processors.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            processors.append(TopKLogitsWarper(params.top_k))
        processors.append(TopPLogitsWarper(params.top_p))
        processors.append(MinPLogitsWarper(params.min_p))
    scores = processors(torch.tensor([text]), logits.unsqueeze(0).clone())[0]
    if params.greedy:
        return torch.nn.functional.one_hot(scores.argmax(), len(scores)).to(scores.dtype)
    return scores.softmax(-1)


def path_text(tree: TokenTree, row: int, node: int) -> list[int]:
    """The tokens from the root, left out, down to a node."""
    tokens: list[int] = []
    while node > 0:
        tokens.insert(0, int(tree.tokens[row, node]))
        node = int(tree.parents[row, node])
    return tokens


def case(params, vocab_size=300, shape=CLOVER2_TREE, dtype=torch.float64, seed=0):
    """A sampler, logits [B, N, V], a tree of random tokens, each row's prompt, which ends with the root."""
    generator = torch.Generator().manual_seed(seed)
    rows, nodes = len(params), len(shape.parents)
    tokens = torch.randint(vocab_size, (rows, nodes), generator=generator)
    prompts = [torch.randint(vocab_size, (6,), generator=generator).tolist() for _ in range(rows)]
    prompts = [[*prompt, int(root)] for prompt, root in zip(prompts, tokens[:, 0], strict=True)]
    logits = torch.randn(rows, nodes, vocab_size, generator=generator, dtype=torch.float64).mul(3).to(dtype)
    sampler = Sampler(params, prompts, vocab_size, "cpu")
    return sampler, logits, TokenTree.from_shape(shape, tokens), prompts


def assert_as_transformers(params, vocab_size, dtype, seed=0):
    sampler, logits, tree, prompts = case(params, vocab_size, dtype=dtype, seed=seed)
    probs = sampler.target_probs(logits, tree)
    assert probs.dtype == dtype
    for row, node in ((row, node) for row in range(len(params)) for node in range(0, 26, 5)):
        expected = slow_probs(params[row], logits[row, node], prompts[row] + path_text(tree, row, node))
        torch.testing.assert_close(probs[row, node], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("vocab_size", [10, 300, 1500])
def test_target_probs_of_a_mixed_batch_are_those_of_transformers(vocab_size, dtype):
    assert_as_transformers(SETTINGS, vocab_size, dtype)


@pytest.mark.parametrize("params", SETTINGS)
def test_target_probs_of_a_single_row_are_those_of_transformers(params):
    assert_as_transformers([params], 300, torch.float64)


def test_target_probs_of_random_settings_are_those_of_transformers():
    rng = random.Random(0)
    for seed in range(20):
        params = [
            SamplingParams(
                temperature=rng.choice([0.0, 0.3, 1.0, 1.9]),
                top_k=rng.choice([0, 0, 1, 8, 70]),
                top_p=rng.choice([1.0, 0.01, 0.5, 0.95, 0.9999]),
                min_p=rng.choice([0.0, 0.001, 0.5, 1.0]),
                repetition_penalty=rng.choice([1.0, 0.5, 1.2]),
                banned_tokens=tuple(rng.sample(range(100), rng.choice([0, 3, 99]))),
            )
            for _ in range(3)
        ]
        assert_as_transformers(params, 100, torch.float64, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_greedy_rows_take_the_first_highest_logit(dtype):
    sampler, logits, tree, _ = case([SamplingParams()] * 2, dtype=dtype)
    assert torch.equal(sampler.choose(logits, tree), logits.argmax(-1))
    assert sampler.choose(torch.zeros_like(logits), tree).eq(0).all()


def own_gumbels(params: SamplingParams, position: int, vocab_size: int = 300) -> torch.Tensor:
    """The numbers of one row and text position, [V]; 2 is what they are for."""
    return gumbels(torch.tensor([params.seed]), 2, position, torch.arange(vocab_size)).double()


def test_choices_win_the_race_with_the_numbers_of_their_position():
    sampler, logits, tree, _ = case(SETTINGS)
    counts = torch.arange(len(SETTINGS)) % 3
    sampler.commit(torch.zeros(len(SETTINGS), 2, dtype=torch.long), counts)
    choices, probs = sampler.choose(logits, tree), sampler.target_probs(logits, tree)
    for row, params in enumerate(SETTINGS):
        for node in range(26):
            scores = own_gumbels(params, int(counts[row] + tree.depths[row, node]))
            if params.greedy:
                scores.zero_()
            assert choices[row, node] == (probs[row, node].log() + scores).argmax()


def test_a_draft_is_told_the_numbers_of_the_targets_choices():
    """A draft that has the target's logits ranks first what the target chooses, whatever the processors keep."""
    params = [SamplingParams(temperature=t, seed=seed) for seed, t in enumerate((0.0, 0.4, 1.0, 1.7))]
    sampler, logits, tree, _ = case(params, dtype=torch.float32)
    for step in range(3):
        for depth in range(tree.max_depth + 1):
            nodes = tree.depths[0] == depth
            scores = sampler.gumbel_scores(logits[:, nodes], depth)
            assert torch.equal(scores.argmax(-1), sampler.choose(logits, tree)[:, nodes])
            for row, own in enumerate(params[1:], 1):
                position = 2 * step + depth
                slow = logits[row, nodes].double() / own.temperature + own_gumbels(own, position)
                torch.testing.assert_close(scores[row].double(), slow, rtol=0, atol=1e-4)
        assert torch.equal(sampler.gumbel_scores(logits, 2)[0], logits[0])
        sampler.commit(torch.zeros(4, 2, dtype=torch.long), torch.full((4,), 2))


def test_greedy_rows_leave_a_drafts_logits_as_they_are():
    sampler, logits, _, _ = case([SamplingParams()] * 2, dtype=torch.bfloat16)
    assert sampler.gumbel_scores(logits, 0) is logits


def test_a_step_hashes_what_no_step_before_it_has(monkeypatch):
    """Draft and verification share the numbers, and the next step those of positions that were not reached."""
    hashed = []

    def counted(*arguments):
        numbers = gumbels(*arguments)
        hashed.append(numbers.numel() // 300)
        return numbers

    monkeypatch.setattr("clover.sampling.gumbel_cache.gumbels", counted)
    sampler, logits, tree, _ = case(SETTINGS)
    sampling = sum(not params.greedy for params in SETTINGS)
    rows = torch.ones(len(SETTINGS), dtype=torch.long)
    every = tree.max_depth + 1
    for new, gained in ((every, 1), (1, 2), (2, 0), (0, every + 2), (every, 0)):
        sampler.expect(tree.max_depth)
        for depth in range(tree.max_depth):
            sampler.gumbel_scores(logits[:, :2], depth)
        sampler.choose(logits, tree)
        assert sum(hashed) == new * sampling
        hashed.clear()
        sampler.commit(tree.tokens[:, :1].expand(-1, gained), gained * rows)
    sampler, logits, _, _ = case(SETTINGS)
    sampler.choose(logits[:, :1], TokenTree.root_only(tree.tokens[:, :1]))
    assert not hashed  # a plain step looks at few tokens, and keeps nothing (`clover.sampling.race`)


def test_a_row_chooses_alike_in_every_company():
    sampler, logits, tree, prompts = case(SETTINGS)
    together = sampler.choose(logits, tree)
    order = random.Random(0).sample(range(len(SETTINGS)), len(SETTINGS))
    sampler.select(order)
    shuffled = TokenTree.from_shape(CLOVER2_TREE, tree.tokens[order])
    assert torch.equal(sampler.choose(logits[order], shuffled), together[order])
    for row, params in enumerate(SETTINGS):
        alone = Sampler([params], [prompts[row]], 300, "cpu")
        single = TokenTree.from_shape(CLOVER2_TREE, tree.tokens[row : row + 1])
        assert torch.equal(alone.choose(logits[row : row + 1], single), together[row : row + 1])


def test_numbers_belong_to_the_seed_and_the_position():
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (3, 4, 3)]
    shape = TreeShape.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 0, 0)])
    tree = TokenTree.from_shape(shape, torch.zeros(3, 6, dtype=torch.long))
    choices = Sampler(params, [[0]] * 3, 5000, "cpu").choose(torch.zeros(3, 6, 5000), tree).tolist()
    assert choices[0] == choices[2]
    assert not set(choices[0]) & set(choices[1])
    by_depth = dict(zip(shape.depths, choices[0], strict=True))
    assert [by_depth[depth] for depth in shape.depths] == choices[0]
    assert len(set(by_depth.values())) == 4


def test_the_last_node_alone_costs_no_work_for_others(monkeypatch):
    params = [
        SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=1)
    ]
    sampler, logits, tree, _ = case(params, shape=TreeShape.chain(4))
    expected, widths, warp = sampler.target_probs(logits, tree), [], Warpers.warp
    monkeypatch.setattr(
        Warpers, "warp", lambda self, scores: widths.append(scores.shape[1]) or warp(self, scores)
    )
    assert torch.equal(sampler.last_probs(logits, tree), expected[:, -1]) and widths == [1]


def test_no_most_probable_token_is_looked_for_where_all_sample(monkeypatch):
    sampler, logits, tree, _ = case([SamplingParams(temperature=0.8)])
    monkeypatch.setattr("clover.sampling.sampler.most_probable", lambda scores: 1 / 0)
    assert sampler.target_probs(logits, tree).shape == logits.shape


def test_committed_tokens_count_as_text_and_their_padding_does_not():
    params = [SamplingParams(temperature=1.0, repetition_penalty=1.5, seed=row) for row in range(3)]
    _, logits, tree, prompts = case(params)
    new, counts = torch.tensor([[11, 12, 13], [14, 99, 98], [99, 98, 97]]), torch.tensor([3, 1, 0])
    longer = [prompt + row[:count].tolist() for prompt, row, count in zip(prompts, new, counts, strict=True)]
    committed = Sampler(params, prompts, 300, "cpu")
    committed.commit(new, counts)
    expected = Sampler(params, longer, 300, "cpu").target_probs(logits, tree)
    assert torch.equal(committed.target_probs(logits, tree), expected)
    committed.select([2, 0])
    short_tree = TokenTree.from_shape(CLOVER2_TREE, tree.tokens[[2, 0]])
    assert torch.equal(committed.target_probs(logits[[2, 0]], short_tree), expected[[2, 0]])


def test_equal_logits_are_kept_or_dropped_together():
    logits = torch.tensor([[[2.0, 1.0, 2.0, 0.0, 1.0, 1.0]]])
    tree = TokenTree.root_only(torch.tensor([[0]]))
    for filters, kept in [({"top_k": 3}, [0, 1, 2, 4, 5]), ({"top_p": 0.3}, [0, 2]), ({"top_k": 1}, [0, 2])]:
        sampler = Sampler([SamplingParams(temperature=1.0, **filters)], [[0]], 6, "cpu")
        assert sampler.target_probs(logits, tree)[0, 0].nonzero().flatten().tolist() == kept


def test_many_equals_at_the_kth_place_are_all_looked_at():
    logits = torch.zeros(1, 1, 2000)
    logits[..., :2] = 1.0
    tree = TokenTree.root_only(torch.tensor([[0]]))
    sampler = Sampler([SamplingParams(temperature=1.0, top_k=5, top_p=0.001)], [[0]], 2000, "cpu")
    assert sampler.target_probs(logits, tree)[0, 0].nonzero().flatten().tolist() == [0, 1]
    sampler = Sampler([SamplingParams(temperature=1.0, top_k=5)], [[0]], 2000, "cpu")
    torch.testing.assert_close(sampler.target_probs(logits, tree), logits.softmax(-1))


def test_probabilities_that_underflow_do_no_harm():
    params = [
        SamplingParams(temperature=1e-5, top_k=50, seed=1),
        SamplingParams(temperature=1e-5, top_p=0.9, seed=2),
    ]
    sampler, logits, tree, _ = case(params, dtype=torch.float32)
    assert torch.equal(sampler.choose(logits * 100, tree), logits.argmax(-1))


def test_banned_tokens_are_never_chosen():
    rows = [SamplingParams(temperature=5.0, banned_tokens=(0, 2, 3), seed=seed) for seed in range(200)]
    rows += [SamplingParams(banned_tokens=(0, 2, 3), logit_bias={0: 1e6}, repetition_penalty=0.001)] * 2
    sampler = Sampler(rows, [[0]] * 202, 5, "cpu")
    tree = TokenTree.root_only(torch.zeros(202, 1, dtype=torch.long))
    assert set(sampler.choose(torch.zeros(202, 1, 5), tree).flatten().tolist()) == {1, 4}


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": 1e-30},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_k": True},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": math.nan},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"1": 1.0}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": [1]},
        {"banned_tokens": (-1,)},
        {"banned_tokens": "ab"},
        {"banned_tokens": 3},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": 2**70},
        {"seed": True},
        {"other": 1},
        {"seed": None},
    ],
)
def test_params_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SamplingParams(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"logit_bias": {10: 1.0}}, {"banned_tokens": (10,)}, {"banned_tokens": tuple(range(10))}]
)
def test_params_that_do_not_fit_the_vocabulary_are_refused(wrong):
    with pytest.raises(UserError, match="vocabulary"):
        Sampler([SamplingParams(**wrong)], [[0]], 10, "cpu")


def test_params_are_values():
    assert hash(ALL) == hash(dataclasses.replace(ALL))
    assert SamplingParams(banned_tokens=[1, 2]).banned_tokens == (1, 2)


def test_a_race_is_what_drafts_expect_at_every_depth() -> None:
    rows = [
        SamplingParams(),
        SamplingParams(temperature=0.7, seed=3),
        SamplingParams(temperature=1.2, top_k=4, seed=4),
    ]
    logits, some = torch.randn(3, 2, 30), torch.arange(0, 30, 2)
    for params in (rows, rows[1:], [rows[2]], rows[:1]):
        for tokens in (None, some):
            seen = logits[: len(params), :, : len(some) if tokens is not None else 30]
            sampler, asked = (Sampler(params, [[0]] * len(params), 30, "cpu") for _ in range(2))
            noise = sampler.gumbel_noise(3, tokens)
            assert (noise.numbers is None) == (params == rows[:1])
            for depth in range(3):
                assert torch.equal(noise.gumbel_scores(seen, depth), asked.gumbel_scores(seen, depth, tokens))
