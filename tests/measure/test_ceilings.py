from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from clover.measure.ceilings import Limits, fastest, measure_limits
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_all_weights_but_the_embedding_table(tied: bool) -> None:
    config = tiny_config("llama")
    config.tie_word_embeddings = tied
    target = TargetModel(tiny_model("llama", config=config))
    table = 50 * 32
    # two layers: q, o; k, v of half the heads; three of the MLP
    matrices = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    norms = 5 * 32
    found = measure_limits(target)
    assert found.weight_bytes == 8 * (matrices + table + norms)  # the table once: as the lm_head
    assert found.flops_per_token == 2 * (matrices + table)
    assert found.bytes_per_second > 1e7 and found.flops_per_second > 1e7  # any machine at all


def test_of_experts_those_of_one_token_count() -> None:
    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = MixtralConfig(**shape, **heads, num_local_experts=4, num_experts_per_tok=1)
    found = measure_limits(TargetModel(AutoModelForCausalLM.from_config(config).eval()))
    matrices = 50 * 32 + 2 * (4 * 32 * 32 + 4 * 32 + 3 * 48 * 32)  # lm_head; attention, router, one expert
    assert found.flops_per_token == 2 * matrices
    assert found.weight_bytes == 4 * (matrices + 5 * 32)


def test_times_at_the_ceilings() -> None:
    limits = Limits(weight_bytes=50, flops_per_token=10, bytes_per_second=100.0, flops_per_second=1000.0)
    assert limits.read_seconds == 0.5
    assert limits.product_seconds(5) == 0.05


def test_the_first_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, *(at for n in range(7) for at in (10.0 * n, 10.0 * n + 9 - n))])
    monkeypatch.setattr("clover.measure.ceilings.time.perf_counter", lambda: next(times))
    calls: list[int] = []
    assert fastest(lambda: calls.append(1) or torch.zeros(1), torch.device("cpu")) == 3.0
    assert len(calls) == 8
