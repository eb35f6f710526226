from __future__ import annotations

import pytest
import torch

from clover.bench.ceilings import Ceilings, fastest, measure_ceilings, step_work
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_all_weights_but_the_embedding_table(tied: bool) -> None:
    config = tiny_config("llama")
    config.tie_word_embeddings = tied
    target = TargetModel(tiny_model("llama", config=config))
    table = 50 * 32
    matrices = 2 * (
        2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32
    )  # two layers: q, o; k, v of half the heads; three of the MLP
    norms = 5 * 32
    work = step_work(target)
    assert work.weight_bytes == 8 * (matrices + table + norms)  # the table once: as the lm_head
    assert work.flops_per_token == 2 * (matrices + table)


def test_times_at_the_ceilings() -> None:
    ceilings = Ceilings(bytes_per_second=100.0, read_bytes=1, flops_per_second=1000.0)
    assert ceilings.read_seconds(50) == 0.5
    assert ceilings.product_seconds(50) == 0.05


def test_ceilings_are_measured_at_the_size_of_the_weights() -> None:
    found = measure_ceilings(torch.device("cpu"), torch.float32, 3 * 2**20)
    assert 3 * 2**20 <= found.read_bytes < 3 * 2**20 + 4 * 4096
    assert found.bytes_per_second > 1e7 and found.flops_per_second > 1e7  # any machine at all
    assert measure_ceilings(torch.device("cpu"), torch.bfloat16, 10).read_bytes == 2**20  # the least


def test_the_first_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr("clover.bench.ceilings.time.perf_counter", lambda: next(times))
    calls: list[int] = []
    assert fastest(lambda: calls.append(1) or torch.zeros(1), torch.device("cpu"), 3) == 2.0
    assert len(calls) == 4
