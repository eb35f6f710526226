"""Recall finds the two tokens before the newest one in vLLM's cache, exactly, in every dtype of it."""

import os

import pytest
import torch

from clover.integrations.vllm.recall import RecallForCausalLM
from tests.integrations.vllm.engine import serve

pytestmark = pytest.mark.skipif(os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1", reason="the same for both")

needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="vLLM's fp8 cache on a CPU needs AVX-512"
)


@pytest.fixture
def found(monkeypatch):
    """Filled as vLLM runs with (position, tokens found, tokens that were kept) for one request."""
    kept, found, keep, find = {}, [], RecallForCausalLM._extra_channels, RecallForCausalLM._earlier

    def recorded_keep(self, tokens, positions, dtype):
        kept.update(zip(positions.tolist(), tokens.tolist(), strict=True))
        return keep(self, tokens, positions, dtype)

    def recorded_find(self, extra, positions):
        tokens = find(self, extra, positions)
        for position, (near, far) in zip(positions.tolist(), tokens.tolist(), strict=True):
            if position >= 2:
                found.append((position, (near, far), (kept[position - 1], kept[position - 2])))
            elif position == 1:
                found.append((position, (near,), (kept[0],)))
        return tokens

    monkeypatch.setattr(RecallForCausalLM, "_extra_channels", recorded_keep)
    monkeypatch.setattr(RecallForCausalLM, "_earlier", recorded_find)
    return found


@pytest.mark.parametrize(
    ("dtype", "cache"),
    [
        *(("float32", "auto"), ("bfloat16", "auto"), ("float16", "auto")),
        pytest.param("bfloat16", "fp8", marks=needs_avx512),
    ],
)
def test_tokens_come_back_as_they_were_kept(dtype, cache, drafts, prompts, found):
    prompt = (prompts[-1] * 8)[:900]
    serve(
        [prompt],
        drafts["recall"],
        dtype=dtype,
        kv_cache_dtype=cache,
        max_num_batched_tokens=128,  # in chunks, so that most is found in the cache
        max_model_len=1024,
    )
    real = [one for one in found if one[2] != (0, 0)]  # vLLM measures its memory with zeros
    assert len(real) > len(prompt)
    other = [one for one in real if one[1] != one[2]]
    assert not other, f"{len(other)} of {len(real)} differ; the first: {other[0]}"
