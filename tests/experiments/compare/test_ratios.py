from __future__ import annotations

from math import hypot

import pytest

from experiments.compare.ratios import Ratio

TWO = {(0, "a"): (2.0, 1.0), (0, "b"): (5.0, 2.0), (0, "c"): (9.0, 3.0)}
OTHER = {(0, "a"): (1.0, 1.0), (0, "b"): (3.0, 2.0), (0, "c"): (7.0, 3.0)}


def test_a_difference_is_paired_by_name_and_not_by_place() -> None:
    backwards = Ratio.of(dict(reversed(OTHER.items())))
    found, expected = Ratio.of(TWO) - backwards, Ratio.of(TWO) - Ratio.of(OTHER)
    assert found.estimate.value == expected.estimate.value == pytest.approx(16 / 6 - 11 / 6)
    # deviations: (2 - 16/6) - (1 - 11/6) = 1/6, (5 - 32/6) - (3 - 22/6) = 1/3 and so -1/2, of 6 each
    spread = ((1 / 6) ** 2 + (1 / 3) ** 2 + (1 / 2) ** 2) * 3 / 2
    assert found.estimate.error == expected.estimate.error == pytest.approx(spread**0.5 / 6)


def test_where_the_prompts_are_others_the_variances_add_up() -> None:
    renamed = Ratio.of({(seed, f"other {prompt}"): pair for (seed, prompt), pair in OTHER.items()})
    one, other = Ratio.of(TWO).estimate.error, Ratio.of(OTHER).estimate.error
    assert one is not None and other is not None
    assert (Ratio.of(TWO) - renamed).estimate.error == pytest.approx(hypot(one, other))


def test_seeds_count_where_one_of_them_has_fewer_prompts() -> None:
    seeds = {(1, prompt): pair for (_, prompt), pair in OTHER.items()}
    both = Ratio.of(TWO | seeds)
    fewer = Ratio.of({key: pair for key, pair in (TWO | seeds).items() if key != (1, "c")})
    assert set(both.seeds) == set(fewer.seeds) == {0, 1}
    assert both.seeds[0] == pytest.approx(-both.seeds[1]) and both.seeds[0] > 0
    assert fewer.estimate.error is not None and fewer.estimate.error > abs(fewer.seeds[0]) * 2**0.5 > 0
