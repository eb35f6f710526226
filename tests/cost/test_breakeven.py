import pytest

from clover.cost.breakeven import TrainingCost


def money_saved(tokens: float, plain_seconds: float, speedup: float, price: float) -> float:
    """Reference: what plain decoding of so many tokens costs, less what drafted decoding costs."""
    hours_plain = tokens * plain_seconds / 3600
    return price * (hours_plain - hours_plain / speedup)


@pytest.mark.parametrize("speedup", [1.01, 1.5, 3.0])
@pytest.mark.parametrize(("price", "serving"), [(1.0, 1.0), (2.5, 10.0), (10.0, 2.5)])
def test_at_break_even_what_is_saved_is_what_was_paid(speedup: float, price: float, serving: float) -> None:
    tokens = TrainingCost(1800.0, price, serving).paying_tokens(0.02, speedup)
    assert tokens is not None
    assert money_saved(tokens, 0.02, speedup, serving) == pytest.approx(price / 2, rel=1e-12)


@pytest.mark.parametrize("speedup", [1.0, 0.7])
def test_nothing_faster_never_pays(speedup: float) -> None:
    assert TrainingCost(10.0).paying_tokens(0.1, speedup) is None


def test_without_prices_time_counts_alone() -> None:
    assert (
        TrainingCost(9.0).paying_tokens(0.1, 2.0) == TrainingCost(9.0, 3.0).paying_tokens(0.1, 2.0) == 180.0
    )
    assert TrainingCost(1800.0).words == "30:00 min"
    assert TrainingCost(1800.0, 3.0).words == "30:00 min, 1.50 at 3 per hour"
