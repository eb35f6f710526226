"""Training of the recipe's target: it learns, and an interrupted run goes on exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.recipes import pretrain as module
from experiments.recipes.corpus import Document
from experiments.recipes.pretrain import mean_loss, pretrain, target_config
from experiments.recipes.tokens import END_OF_TEXT, token_stream, train_tokenizer


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )


class Clock:
    """Time that passes by one second at every look, so that a budget is a number of looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_it_learns_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())
    stream = torch.arange(6000, dtype=torch.int16) % 16
    model = tiny()
    before = mean_loss(model, stream)
    for moment in pretrain(model, stream, tmp_path / "state", 2.0, batch_tokens=512):
        assert 0 <= moment.share <= 1
    assert mean_loss(model, stream) < before / 4


@pytest.mark.parametrize("minutes", [0.1, 0.5])
def test_a_finished_run_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    monkeypatch.setattr(module, "time", Clock())
    stream = torch.arange(6000, dtype=torch.int16) % 16
    model, budget = tiny(), (tmp_path / "state", minutes, 256)
    *_, last = pretrain(model, stream, *budget)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    again = tiny()
    (only,) = pretrain(again, stream, *budget)
    assert (only.share, only.step, only.loss) == (1.0, last.step, last.loss)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in trained.items())


def test_a_run_that_is_closed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())
    stream = torch.arange(6000, dtype=torch.int16) % 16
    model, budget = tiny(), (tmp_path / "state", 1.0, 256)
    moments = pretrain(model, stream, *budget)
    first = next(moments)
    moments.close()
    again = tiny()
    second = next(pretrain(again, stream, *budget))
    assert (first.step, second.step) == (10, 20) and second.tokens == 2 * first.tokens
    assert second.seconds > first.seconds


def test_a_signal_ends_a_run_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())
    stream, step, taken = torch.arange(6000, dtype=torch.int16) % 16, module._step, []

    def signalled(*given: Any) -> Any:
        taken.append(len(taken) + 1)
        if taken[-1] == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*given)

    budget = (tmp_path / "state", 1.0, 256)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "_step", signalled)
        list(pretrain(tiny(), stream, *budget))
    assert next(pretrain(tiny(), stream, *budget)).step == 20 and taken[-1] == 13


def test_the_target_is_deep_and_narrow() -> None:
    config = target_config(4096, 1024, 0)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    assert config.num_hidden_layers >= 16
    assert 12e6 < sum(p.numel() for p in model.parameters()) < 16e6


def test_documents_become_one_stream() -> None:
    documents = [Document("a", "a.py", "def f(x):\n    return x\n" * 3), Document("a", "b.py", "y = 1\n")]
    tokenizer = train_tokenizer(documents, 64)
    stream = token_stream(tokenizer, documents).long()
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    assert (stream == end).sum() == 2
    assert tokenizer.decode(stream[stream != end]) == documents[0].text + documents[1].text
