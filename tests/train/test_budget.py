"""What a run has spent, by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clover.data import Batches, Sample
from clover.drafts import TrainingDefaults
from clover.train import TrainConfig
from clover.train.budget import TrainingBudget, pass_tokens


def make(hidden_size: int = 64, **options: Any) -> tuple[TrainingBudget, Any, Batches]:
    clock: Any = SimpleNamespace(now=100.0)
    texts = [Sample(torch.arange(10).int(), torch.ones(10, dtype=torch.bool)) for _ in range(8)]
    batches = Batches(texts, 10, 20, seed=0)
    return (
        TrainingBudget(TrainConfig("x", **options), batches, hidden_size, lambda: clock.now),
        clock,
        batches,
    )


def test_minutes_count_from_the_start_and_over_interruptions() -> None:
    budget, clock, _ = make(max_minutes=1.0)
    clock.now = 500.0
    budget.start()
    clock.now += 15.0
    assert (budget.seconds, budget.spent) == (15.0, 0.25)
    budget.resume(step=3, tokens=60, seconds=30.0)
    assert (budget.step, budget.tokens, budget.spent) == (3, 60, 0.75)
    clock.now += 15.0
    assert budget.is_spent


def test_the_smallest_budget_is_one_step() -> None:
    budget, clock, batches = make(max_minutes=1e-9)
    budget.start()
    clock.now += 1.0
    assert budget.spent == 1.0 and not budget.is_spent
    budget.count([next(batches)])
    assert (budget.step, budget.tokens) == (1, 20) and budget.is_spent


def test_the_bound_that_is_nearer_counts_and_epochs_where_there_is_none() -> None:
    for options, spent in (
        ({"max_steps": 8, "max_minutes": 1.0}, 0.5),
        ({"max_steps": 8, "max_minutes": 0.4}, 0.625),
        ({"max_steps": 3}, 1.0),
        ({"max_minutes": 0.1}, 1.0),
        ({}, 0.5),
    ):
        budget, clock, batches = make(epochs=2.0, **options)
        for _ in range(4):  # an epoch
            budget.count([next(batches)])
        clock.now += 15.0
        assert budget.spent == spent


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [0.01, 0.51, 1.0, 1.0, 0.5, 0.0]),
        ({"schedule": "cosine"}, [0.01, 0.51, 0.9, 0.5, 0.15, 0.0]),
        ({"schedule": "constant"}, [0.01, 0.51, 1.0, 1.0, 1.0, 1.0]),
        ({"warm_up": 0.0, "decay": 0.0}, [1.0] * 6),
    ],
)
def test_learning_rates(options: dict[str, Any], rates: list[float]) -> None:
    budget, *_ = make(**{"max_steps": 20, "warm_up": 0.1, "decay": 0.5} | options)
    found = []
    for budget.step in (0, 1, 4, 10, 15, 20):
        found.append(round(budget.rate, 2))
    assert found == rates


def test_steps_grow_fast_up_to_a_share_of_the_width_and_slowly_from_there() -> None:
    learnt = (0, 400, 10_000, 1_000_000, 100_000_000)
    for hidden_size, expected in (
        (64, [0, 40, 50, 500, 5000]),
        (1536, [0, 40, 200, 1152, 5000]),
        (4096, [0, 40, 200, 2000, 5000]),
    ):
        budget, *_ = make(hidden_size)
        found = []
        for budget.tokens in learnt:
            found.append(budget.step_tokens)
        assert found == expected
    budget, *_ = make(step_tokens=7)
    assert budget.step_tokens == 7


def test_passes_on_a_cpu_are_longer_for_wide_targets() -> None:
    assert [pass_tokens("cpu", size) for size in (64, 576, 896, 1536)] == [512, 576, 896, 1024]
    assert pass_tokens("cuda", 64) == pass_tokens("cuda", 4096) == 4096


@pytest.mark.parametrize(("learnt", "measured"), [(50, 2048), (160_000, 10_000), (10**7, 32_768)])
def test_held_out_texts_are_measured_for_a_share_of_what_was_learnt(learnt: int, measured: int) -> None:
    budget, *_ = make()
    budget.resume(1, learnt, 0.0)
    assert budget.held_out_tokens == measured


def test_few_depths_come_first_in_a_budget_of_minutes() -> None:
    draft: Any = SimpleNamespace(trained_depths=5, training_defaults=TrainingDefaults(depth_curriculum=True))
    for options, expected in (({"max_minutes": 1.0}, [2, 2, 5]), ({"max_steps": 4}, [5, 5, 5])):
        budget, clock, _ = make(few_depths=0.6, **options)
        budget.start()
        found = []
        for seconds in (0.0, 30.0, 10.0):
            clock.now += seconds
            found.append(budget.depths(draft))
        assert found == expected
