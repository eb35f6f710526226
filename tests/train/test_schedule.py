"""How much of a budget is spent, and the learning rate that goes with it."""

from __future__ import annotations

from dataclasses import replace

from clover.train import TrainConfig
from clover.train.schedule import rate, spent


def test_the_bound_that_is_nearer_counts() -> None:
    config = TrainConfig(output="x", max_steps=100, max_minutes=1.0, epochs=2.5)
    assert spent(config, 50, 6.0, 0.1) == 0.5
    assert spent(config, 10, 30.0, 0.1) == 0.5
    assert spent(config, 10, 90.0, 0.1) == 1.0
    assert spent(replace(config, max_steps=None), 1000, 30.0, 9.0) == 0.5
    assert spent(replace(config, max_steps=None, max_minutes=None), 1000, 999.0, 1.0) == 0.4


def test_learning_rates() -> None:
    config = TrainConfig(output="x", warm_up=0.1, decay=0.5)
    shares = (0.0, 0.05, 0.2, 0.5, 0.75, 1.0)
    assert [round(rate(config, s), 2) for s in shares] == [0.01, 0.51, 1.0, 1.0, 0.5, 0.0]
    cosine = replace(config, schedule="cosine")
    assert [round(rate(cosine, s), 2) for s in shares] == [0.01, 0.51, 0.9, 0.5, 0.15, 0.0]
    assert rate(replace(config, warm_up=0.0, decay=0.0), 0.0) == 1.0
    constant = replace(config, schedule="constant")
    assert [round(rate(constant, s), 2) for s in shares] == [0.01, 0.51, 1.0, 1.0, 1.0, 1.0]
