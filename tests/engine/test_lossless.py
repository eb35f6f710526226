"""Losslessness: with a draft, the engine emits token for token what plain decoding emits.

Every family × trees (chain, wide, the 25 nodes of Clover-2, random) × caches that grow or have room, greedy and
sampled, in float64. Batches of 1, 3 and 8 take turns: of three families, each tree meets each. Plain decoding itself
is held against full forwards of the unpatched model without any cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product

import pytest
import torch
import transformers as hf

from clover import verify
from clover.drafting import StaticTree
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, EngineLimits, Generation, Request
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TreeShape
from tests.families import EVERY_FAMILY, FAMILIES, VOCAB, tiny_config, tiny_model
from tests.oracle import OracleDraft, texts_of_rows

NEW_TOKENS = 14
BATCHES = (1, 3, 8)
SMALL_LIMITS = EngineLimits(prefill_chunk=4, new_tokens=1)  # caches grow at every step
SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.3, seed=5),
    SamplingParams(temperature=0.7, top_p=0.8, repetition_penalty=1.3, seed=6),
    SamplingParams(repetition_penalty=1.5, banned_tokens=(7, 8)),
    SamplingParams(temperature=1.0, top_k=5, min_p=0.02, logit_bias={9: 1.5}, seed=7),
    SamplingParams(temperature=0.9, frequency_penalty=1.2, presence_penalty=-0.7, seed=8),
    SamplingParams(frequency_penalty=1.5, presence_penalty=2.0, repetition_penalty=0.8),
)


def random_shape(seed: int) -> TreeShape:
    """A random prefix-closed set of rank paths."""
    rng, paths = random.Random(seed), [()]
    for _ in range(14):
        parent = rng.choice([p for p in paths if len(p) < 6])
        rank = next(r for r in count() if (*parent, r) not in paths)
        paths.append((*parent, rank))
    return TreeShape.from_paths(paths[1:])


SHAPES = {
    "chain": TreeShape.chain(4),
    "wide": TreeShape.from_paths([(i,) for i in range(12)]),
    "clover2": CLOVER2_TREE,
    "random": random_shape(3),
}


def requests_of(batch: int, params: Sequence[SamplingParams], new_tokens: int = NEW_TOKENS) -> list[Request]:
    rng = random.Random(batch)
    prompts = [tuple(rng.randrange(3, VOCAB) for _ in range(rng.choice((1, 2, 5, 9)))) for _ in range(batch)]
    lengths = [new_tokens - rng.randrange(5) for _ in range(batch)]
    return [
        Request(prompt, length, params[i % len(params)], eos=() if i % 2 == 0 else None)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def run(engine: Engine, requests: Sequence[Request]) -> list[Generation]:
    finished = {e.index: e.generation for e in engine.run(requests) if e.generation is not None}
    return [finished[i] for i in range(len(requests))]


def tokens_of(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [g.tokens for g in generations]


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def target(request: pytest.FixtureRequest) -> TargetModel:
    return TargetModel(tiny_model(request.param))


@pytest.mark.usefixtures("small_caches")
def test_plain_decoding_is_what_the_model_itself_says(target: TargetModel) -> None:
    requests = requests_of(3, SETTINGS[:1])
    for request, generation in zip(requests, run(Engine(target, limits=SMALL_LIMITS), requests), strict=True):
        text = list(request.prompt)
        for token in generation.tokens:
            logits = target.model(input_ids=torch.tensor([text]), use_cache=False).logits
            assert token == int(logits[0, -1].argmax())
            text.append(token)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_tree_gives_the_tokens_of_plain_decoding(target: TargetModel, batch: int) -> None:
    requests = requests_of(batch, SETTINGS)
    plain = run(Engine(target, limits=EngineLimits(prefill_chunk=4)), requests)
    texts = texts_of_rows((r.prompt for r in requests), tokens_of(plain))
    turn = FAMILIES.index(target.name) + BATCHES.index(batch)
    for number, (name, room) in [*enumerate(product(SHAPES, (4096, 1)))][turn % 3 :: 3]:
        draft = OracleDraft(target, texts, spread=number % 3)
        engine = Engine(
            target, draft, StaticTree(SHAPES[name]), limits=EngineLimits(prefill_chunk=4, new_tokens=room)
        )  # type: ignore[arg-type]
        found = run(engine, requests)
        assert tokens_of(found) == tokens_of(plain), (name, room)
        assert [g.finish_reason for g in found] == [g.finish_reason for g in plain]
        if number % 3 == 0:
            assert sum(g.acceptance.steps for g in found) < sum(g.acceptance.steps for g in plain)


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("hidden_state", ["post_norm", "pre_norm"])
@pytest.mark.parametrize("system", ["clover2", "recall"])
def test_a_draft_gives_the_tokens_of_plain_decoding(
    target: TargetModel, system: str, hidden_state: str
) -> None:
    torch.manual_seed(1)
    draft = SYSTEMS[system].from_target(target, hidden_state=hidden_state).to(target.dtype).eval()
    requests = requests_of(3, SETTINGS)
    found = run(Engine(target, draft, limits=SMALL_LIMITS), requests)
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))


def test_float32_gives_the_tokens_of_plain_decoding() -> None:
    target = TargetModel(tiny_model("llama", torch.float32))
    requests = requests_of(8, SETTINGS, new_tokens=60)
    plain = run(Engine(target), requests)
    texts = texts_of_rows((r.prompt for r in requests), tokens_of(plain))
    for shape in SHAPES.values():
        found = run(Engine(target, OracleDraft(target, texts), StaticTree(shape)), requests)  # type: ignore[arg-type]
        assert tokens_of(found) == tokens_of(plain)


def test_output_does_not_depend_on_the_batch() -> None:
    target = TargetModel(tiny_model("llama"))
    requests = requests_of(8, SETTINGS)
    together = run(Engine(target), requests)
    assert tokens_of(together) == [run(Engine(target), [request])[0].tokens for request in requests]


def test_the_right_draft_is_accepted_whole() -> None:
    target = TargetModel(tiny_model("llama"))
    request = Request((5, 6, 7), 40, eos=())
    (plain,) = run(Engine(target), [request])
    draft = OracleDraft(target, [[*request.prompt, *plain.tokens]], spread=0)
    (found,) = run(Engine(target, draft, "chain:4"), [request])  # type: ignore[arg-type]
    assert found.acceptance.steps == 8
    assert found.acceptance.tau == 5.0


def test_no_draft_token_is_placed_beyond_a_rotary_switch() -> None:
    """Frequencies follow the highest position of a forward: one draft token too far would change all the others."""
    config = tiny_config("phi3")
    config.max_position_embeddings, config.original_max_position_embeddings = 256, 32
    factors = [1.0 + 0.5 * i for i in range(4)]
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": factors,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 1.0,
    }
    target = TargetModel(tiny_model("phi3", config=config))
    requests = [Request((3 + i, 9, 4, 7, 11, 30, 8, 5, 21, 6, 13, 17), 20, eos=()) for i in range(3)]
    plain = run(Engine(target), requests)
    texts = texts_of_rows((r.prompt for r in requests), tokens_of(plain))
    found = run(Engine(target, OracleDraft(target, texts), "clover2"), requests)  # type: ignore[arg-type]
    assert tokens_of(found) == tokens_of(plain)
    (longer,) = run(Engine(target), [replace(requests[0], max_new_tokens=21)])
    assert (longer.tokens, longer.finish_reason) == (plain[0].tokens, "context")


SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def windowed_target(family: str) -> TargetModel:
    config = tiny_config(family)
    config.sliding_window = 24
    return TargetModel(tiny_model(family, config=config))


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "phi3"])
def test_texts_go_on_past_windows(family: str) -> None:
    """With windows in one layer of two (Gemma 3), or in all; prompts shorter and longer than a window."""
    target = windowed_target(family)
    requests = [Request((*range(3, 43), 9, 4, 7)[:n], 60, eos=()) for n in (43, 30, 4)]
    plain = run(Engine(target), requests)
    texts = texts_of_rows((r.prompt for r in requests), tokens_of(plain))
    for text, request in zip(texts, requests):
        logits = target.model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
        start = len(request.prompt)
        assert len(text) == start + 60
        assert logits[start - 1 : -1].argmax(-1).tolist() == text[start:]
    engine = Engine(target, OracleDraft(target, texts), "clover2")  # type: ignore[arg-type]
    assert tokens_of(run(engine, requests)) == tokens_of(plain)
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    assert tokens_of(run(Engine(target, draft), requests)) == tokens_of(plain)


EAGER = {
    "gemma2": lambda: hf.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=12, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SMALL, head_dim=8, sliding_window=12, num_local_experts=4, num_experts_per_tok=2
    ),
    "xglm": lambda: hf.XGLMConfig(
        vocab_size=VOCAB, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, max_position_embeddings=128
    ),
}


@pytest.mark.parametrize("family", EAGER)
def test_classes_without_sdpa(family: str) -> None:
    """Scores that are capped, attention sinks, windows. Their softmax is float32 in any dtype."""
    target = TargetModel(tiny_model(family, torch.float32, config=EAGER[family]()))
    requests = [Request(tuple(range(3, 3 + n)), 40, eos=()) for n in (20, 9)]
    plain = run(Engine(target), requests)
    for request, found in zip(requests, plain):
        text = torch.tensor([[*request.prompt, *found.tokens]])
        logits = target.model(input_ids=text, use_cache=False).logits[0, len(request.prompt) - 1 : -1]
        assert tuple(logits.argmax(-1).tolist()) == tuple(found.tokens)
    for system in ("recall", "clover2", "eagle3"):
        draft = SYSTEMS[system].from_target(target).eval()
        assert tokens_of(run(Engine(target, draft), requests)) == tokens_of(plain)


def test_windows_that_are_not_cut_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then texts end with the shortest window."""
    monkeypatch.setattr("clover.target.windows.sees", lambda kind, queries, keys, size: keys <= keys)
    target = windowed_target("gemma3_text")
    requests = [Request((3 + i, 9, 4, 7)[: 4 - i], 100, eos=()) for i in range(3)]
    plain = run(Engine(target), requests)
    texts = texts_of_rows((r.prompt for r in requests), tokens_of(plain))
    found = run(Engine(target, OracleDraft(target, texts), "clover2"), requests)  # type: ignore[arg-type]
    assert tokens_of(found) == tokens_of(plain)
    assert [(len(text), one.finish_reason) for text, one in zip(texts, found)] == [(24, "context")] * 3
    with pytest.raises(
        UserError, match=r"24 tokens but the target's window of layer 0 \(.*\) is 24; shorten"
    ):
        run(Engine(target), [Request((3,) * 24, 1)])


def test_a_broken_verification_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison has power: accept one draft token too many, and the tokens differ."""
    honest_verify = verify.verify

    def careless(tree, choices):
        honest = honest_verify(tree, choices)
        return replace(honest, tokens=torch.cat((tree.tokens[:, 1:2], honest.tokens[:, 1:]), dim=1))

    target = TargetModel(tiny_model("llama"))
    draft = SYSTEMS["recall"].from_target(target).to(target.dtype).eval()
    requests = requests_of(3, SETTINGS[:1])
    plain = run(Engine(target), requests)
    monkeypatch.setattr(verify, "verify", careless)
    assert tokens_of(run(Engine(target, draft), requests)) != tokens_of(plain)
