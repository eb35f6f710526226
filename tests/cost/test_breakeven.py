import math

import pytest

from clover.cost.breakeven import Prices, paying_tokens
from clover.errors import UserError


def money_saved(tokens: float, plain_seconds: float, speedup: float, price: float) -> float:
    """Reference: what plain decoding of so many tokens costs, less what drafted decoding costs."""
    hours_plain = tokens * plain_seconds / 3600
    return price * (hours_plain - hours_plain / speedup)


@pytest.mark.parametrize("speedup", [1.01, 1.5, 3.0])
@pytest.mark.parametrize(("training", "serving"), [(1.0, 1.0), (2.5, 10.0), (10.0, 2.5)])
def test_at_break_even_what_is_saved_is_what_was_paid(
    speedup: float, training: float, serving: float
) -> None:
    prices = Prices(training, serving)
    tokens = paying_tokens(1800.0, 0.02, speedup, prices.ratio)
    assert money_saved(tokens, 0.02, speedup, serving) == pytest.approx(prices.money(1800.0), rel=1e-12)


@pytest.mark.parametrize("speedup", [1.0, 0.7])
def test_nothing_faster_never_pays(speedup: float) -> None:
    assert paying_tokens(10.0, 0.1, speedup) == math.inf


def test_without_prices_time_counts_alone() -> None:
    assert Prices().ratio == Prices(3.0).ratio == 1.0
    assert Prices().money(100.0) is None
    assert Prices(3.0).money(1800.0) == 1.5


def test_impossible_prices_are_refused() -> None:
    with pytest.raises(UserError, match="price is 0; it must be more than 0"):
        Prices(0.0)
    with pytest.raises(UserError, match="serving_price is -1"):
        Prices(1.0, -1.0)
    with pytest.raises(UserError, match="no price of training"):
        Prices(None, 1.0)
