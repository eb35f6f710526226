"""Each text is learnt as often as asked for, the target looks at it once, and other budgets are left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from clover.data import Batch, Batches, Sample
from clover.drafts import RecallDraft
from clover.features import Features
from clover.target import TargetModel
from clover.train import TrainConfig, echoes, train
from clover.train.echoes import Echoes
from clover.train.learner import Known, Learner
from tests.families import VOCAB, tiny_model


def texts(number: int = 60) -> list[Sample]:
    tokens = [torch.arange(start, start + 9 + start % 7) % VOCAB for start in range(number)]
    return [Sample(text.int(), torch.arange(len(text)) > 0) for text in tokens]


def steps(number: int) -> list[list[Known]]:
    nothing = Features(torch.empty(0), torch.empty(0))
    batches: list[Batch] = list(Batches(texts(number), 16, 16, seed=0).epoch())
    return [[(batch, nothing)] for batch in batches]


def learn(found: list[list[Known]], times: int) -> tuple[list[int], Echoes]:
    """The order in which the steps are learnt, by their numbers."""
    kept, order = Echoes(times, seed=0), list[int]()
    numbers = {id(known): number for number, known in enumerate(found)}
    for number, known in enumerate(found):
        while (again := kept.take()) is not None:
            order.append(numbers[id(again)])
        kept.add(known)
        order.append(number)
    return order, kept


@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_text_is_learnt_so_often(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_BETWEEN", 64)
    found = steps(200)
    order, kept = learn(found, times)
    counts = Counter(order)
    waiting = sum(times - count for count in counts.values())
    assert max(counts.values()) == times and set(counts) == set(range(len(found)))
    # Those that are still to come again hold about the tokens between, and in no case many texts.
    assert waiting <= (times - 1) * 16
    assert (times == 1) == (waiting == 0)
    assert kept.take() is None or times > 1


def test_a_text_does_not_come_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_BETWEEN", 64)
    order, _ = learn(steps(200), 2)
    seen: dict[int, int] = {}
    gaps = [place - seen.setdefault(number, place) for place, number in enumerate(order)]
    again = [gap for gap in gaps if gap]
    assert sum(again) / len(again) > 5


@pytest.mark.parametrize(
    ("budget", "looks"), [({"max_minutes": 1e9}, range(6, 12)), ({}, range(12, 13))], ids=["minutes", "steps"]
)
def test_the_target_looks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any], looks: range
) -> None:
    monkeypatch.setattr(echoes, "_TOKENS_BETWEEN", 64)
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
    assert (result.tokens > sum(asked)) == ("max_minutes" in budget)
