"""Each text is learnt as often as asked for, the target looks at it once, and other budgets are left alone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from clover.data import Batches, Sample
from clover.drafts import RecallDraft
from clover.features import Features
from clover.target import TargetModel
from clover.train import TrainConfig, echoes, named_recipe, train
from clover.train.echoes import Echoes
from clover.train.learner import Known, Learner
from tests.families import VOCAB, tiny_model


def texts(number: int = 60) -> list[Sample]:
    tokens = [torch.arange(start, start + 9 + start % 7) % VOCAB for start in range(number)]
    return [Sample(text.int(), torch.arange(len(text)) > 0) for text in tokens]


def steps(number: int, size: int = 16) -> list[list[Known]]:
    nothing = Features(torch.empty(0), torch.empty(0))
    return [[(batch, nothing)] for batch in Batches(texts(number), 16, size, seed=0).epoch()]


def learn(found: list[list[Known]], kept: Echoes) -> list[int]:
    """The order in which the steps are learnt, by their numbers; as a training goes on, after the last new one too."""
    numbers, order = {id(known): number for number, known in enumerate(found)}, list[int]()
    for number, known in enumerate(found):
        kept.add(known)
        order.append(number)
        while (again := kept.take()) is not None:
            order.append(numbers[id(again)])
            assert order[-1] != number, "what has just been learnt"
    return order


def tokens_of(found: list[list[Known]], numbers: set[int]) -> int:
    return sum(found[number][0][0].tokens.numel() for number in numbers)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_text_is_learnt_so_often(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_KEPT", 64)
    found = steps(200)
    counts = Counter(learn(found, Echoes(times, seed=0)))
    waiting = {number for number in range(len(found)) if counts[number] < times}
    assert set(counts) == set(range(len(found))) and max(counts.values()) == times
    assert tokens_of(found, waiting) <= 64 and bool(waiting) == (times > 1)


def test_what_is_kept_is_bounded_where_steps_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_KEPT", 64)
    found, kept = [*steps(100), *steps(200, size=40), *steps(200, size=100)], Echoes(2, seed=0)
    counts = Counter(learn(found, kept))
    waiting = {number for number in range(len(found)) if counts[number] < 2}
    # A step that alone is larger is learnt again after the next one.
    assert waiting == {len(found) - 1} and tokens_of(found, waiting) > 64


@pytest.mark.parametrize(
    ("budget", "looks"),
    [
        ({"max_minutes": 1e9}, range(6, 12)),
        ({}, range(12, 13)),
        ({"max_minutes": 1e9, "echoes": 1}, range(12, 13)),
        ({"max_minutes": 1e9} | named_recipe("paper", "clover1")[0], range(12, 13)),
    ],
    ids=["minutes", "steps", "once", "paper"],
)
def test_the_target_looks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any], looks: range
) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_KEPT", 64)
    target = TargetModel(tiny_model("llama", dtype=torch.float32))
    asked: list[int] = []
    look = Learner.look

    def counting(self: Learner, batches: Any) -> list[Known]:
        found = list(batches)
        asked.append(sum(int(batch.lengths.sum()) for batch in found))
        return look(self, found)

    monkeypatch.setattr(Learner, "look", counting)
    config = TrainConfig(
        output=str(tmp_path / "draft"), max_length=16, batch_tokens=60, max_steps=12, validation_share=0.0
    )
    config = replace(config, **budget)
    draft = RecallDraft.from_target(target, num_heads=2)
    result = train(config, target, texts(), draft, console=Console(file=StringIO()))
    assert result.steps == 12 and len(asked) in looks
    assert (result.tokens > sum(asked)) == (looks.stop == 12)
    record = json.loads((tmp_path / "draft" / "training_config.json").read_text())
    assert (record["config"]["echoes"] == 2) == (looks.stop == 12)
