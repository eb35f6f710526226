"""Models that also read images, of which only the text decoder runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import clover
from clover.drafts import load_draft
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.integrations.export import export
from clover.target import TargetModel

TEXT: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
# The vision towers have as many layers as the text decoders, and larger ones.
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION = {"hidden_size": 64, "out_hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 96}
CONFIGS = {
    "gemma3": lambda: hf.Gemma3Config(
        text_config={**TEXT, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=VISION,
        mm_tokens_per_image=4,
        image_token_index=49,
        boi_token_index=48,
        eoi_token_index=47,
    ),
    "mistral3": lambda: hf.Mistral3Config(
        text_config={"model_type": "mistral", **TEXT},
        vision_config={"model_type": "pixtral", **VISION},
        image_token_index=49,
    ),
    "qwen2_5_vl": lambda: hf.Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": ROTARY},
        vision_config={**QWEN_VISION, "fullatt_block_indexes": [1]},
    ),
}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(
        CONFIGS[name](), attn_implementation="sdpa", dtype=torch.float64
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.15)
    return model.eval()


def tokens_of(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    found = {one.index: tuple(one.generation.tokens) for one in engine.run(requests) if one.generation}
    return [found[index] for index in range(len(requests))]


@pytest.mark.parametrize("name", CONFIGS)
def test_text_is_what_the_whole_model_writes(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_pretrained(tmp_path / "target")
    target = TargetModel.load(tmp_path / "target", dtype=torch.float64)
    assert target.name == name and target.num_layers == 2 and target.hidden_size == 32
    assert target.eos_token_ids == (2,)
    requests = [Request(tuple(range(3, 3 + n)), 40, eos=()) for n in (20, 9)]
    plain = tokens_of(Engine(target), requests)
    for request, new in zip(requests, plain, strict=True):
        logits = model(input_ids=torch.tensor([[*request.prompt, *new]])).logits[0]
        assert tuple(logits[len(request.prompt) - 1 : -1].argmax(-1).tolist()) == new
    for system in ("recall", "clover2"):
        SYSTEMS[system].from_target(target).save_pretrained(tmp_path / system)
        draft = load_draft(tmp_path / system, target)
        assert tokens_of(Engine(target, draft), requests) == plain


def test_layers_of_such_a_target_alone_are_nothing_that_vllm_builds(tmp_path: Path) -> None:
    draft = SYSTEMS["clover2"].from_target(TargetModel(model_of("mistral3")))
    draft.save_pretrained(tmp_path / "draft")
    with pytest.raises(UserError, match="also reads images, mistral"):
        export("vllm", str(tmp_path / "draft"), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_generate_of_transformers(name: str) -> None:
    model = model_of(name)
    draft = SYSTEMS["recall"].from_target(TargetModel(model)).to(torch.float64).eval()
    fast = clover.speculative(draft)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    texts = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    plain = model.generate(texts, **options)
    assert model.generate(texts, **options, custom_generate=fast).equal(plain)


def test_images_are_refused() -> None:
    model = model_of("gemma3")
    fast = clover.speculative(SYSTEMS["recall"].from_target(TargetModel(model)).to(torch.float64).eval())
    prompt, image = torch.tensor([[3, *[49] * 4, 6]]), torch.zeros(1, 3, 28, 28, dtype=torch.float64)
    with pytest.raises(UserError, match="images"):
        model.generate(prompt, max_new_tokens=8, pixel_values=image, custom_generate=fast)
