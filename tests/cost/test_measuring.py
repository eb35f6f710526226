from statistics import fmean

import pytest
import torch

from clover.cost.measuring import MeasuringOptions, PairTimes, measure_pair
from clover.drafts import RecallDraft
from clover.errors import UserError
from clover.target import TargetModel
from tests.families import tiny_model

PROMPTS = [tuple(range(3 + i, 9 + i)) for i in range(13)]


@pytest.fixture(scope="module")
def pair() -> tuple[TargetModel, RecallDraft]:
    torch.manual_seed(0)
    target = TargetModel(tiny_model("llama"))
    return target, RecallDraft.from_target(target).eval()


def test_one_entry_per_full_batch(pair: tuple) -> None:
    shares: list[float] = []
    options = MeasuringOptions(batch_size=2, max_new_tokens=4)
    times = measure_pair(*pair, PROMPTS, options, shares.append)
    assert len(times.plain) == len(times.drafted) == len(times.taus) == 6
    assert shares == [pytest.approx((i + 1) / 6) for i in range(6)]
    assert all(value > 0 for value in (*times.plain, *times.drafted))
    assert all(1 <= tau <= 6 for tau in times.taus)


def test_batches_bound_the_work(pair: tuple) -> None:
    options = MeasuringOptions(max_new_tokens=2, batches=6, tree="chain:2")
    times = measure_pair(*pair, PROMPTS, options)
    assert (len(times.plain), times.depth) == (6, 2)


def test_too_few_prompts_are_refused(pair: tuple) -> None:
    with pytest.raises(UserError, match="13 prompts make 3 batches of 4; an interval needs at least 6"):
        measure_pair(*pair, PROMPTS, MeasuringOptions(batch_size=4))


def test_figures_are_those_of_all_prompts_together() -> None:
    times = PairTimes((0.2, 0.4), (0.1, 0.1), (1.0, 3.0), 5)
    assert times.plain_seconds == pytest.approx(0.3)
    assert times.speedup.value == pytest.approx(0.6 / 0.2)
    assert (times.speedup.low, times.speedup.high) == pytest.approx((2.0, 4.0))
    assert times.tau == pytest.approx(2 / fmean((2.0, 2 / 3)))  # two tokens took two steps, and two 2/3
