"""The hashed numbers: their distribution, their independence, and the ends of their range."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from scipy.stats import chi2, kstest
from torch import Tensor

from clover.sampling import numbers
from clover.sampling.numbers import gumbels, uniforms

FALSE_ALARM_RATE = 1e-4  # of each case
PURPOSE, SIDE = 2, 1 << 10


def block(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Numbers [S, P, T] of seeds, text positions and tokens."""
    return uniforms(seeds[:, None, None], PURPOSE, positions[:, None], tokens)


def shift_of(name: str) -> tuple[Tensor, Tensor]:
    """About a million numbers, and for each the one whose seed, position or token is the next."""
    few, many = torch.arange(33), torch.arange(SIDE)
    if name == "token":
        numbers = block(few, many[:32], many)
        return numbers[..., :-1], numbers[..., 1:]
    if name == "position":
        numbers = block(few, many, few)
        return numbers[:, :-1], numbers[:, 1:]
    numbers = block(many, few, few)
    return numbers[:-1], numbers[1:]


def p_value(cells: Tensor, count: int) -> float:
    """Pearson's chi-square test that all cells are equally likely."""
    found, expected = cells.flatten().bincount(minlength=count).double(), cells.numel() / count
    return float(chi2.sf(((found - expected) ** 2 / expected).sum().item(), count - 1))


def bits(draws: Tensor, first: int, count: int) -> Tensor:
    """Bits of the numbers, from the highest on."""
    return (draws * 2.0 ** (first + count)).long() & ((1 << count) - 1)


SETS = {
    "many tokens": (torch.tensor([0]), torch.tensor([0]), torch.arange(1 << 20)),
    "many positions": (torch.tensor([7]), torch.arange(1 << 20), torch.tensor([0])),
    "many seeds": (torch.arange(1 << 20), torch.tensor([0]), torch.tensor([3])),
    "large seeds": (2**63 - 1 - torch.arange(1 << 10), torch.arange(1 << 5), torch.arange(1 << 5)),
}


@pytest.mark.parametrize("first", [0, 8, 16, 24, 32])
@pytest.mark.parametrize("name", SETS)
def test_numbers_are_uniform_down_to_their_last_bits(name: str, first: int) -> None:
    assert p_value(bits(block(*SETS[name]), first, 8), 256) > FALSE_ALARM_RATE


@pytest.mark.parametrize("first", [0, 14, 28])
@pytest.mark.parametrize("name", ["token", "position", "seed"])
def test_neighbours_are_independent(name: str, first: int) -> None:
    """All pairs of the same bits of two neighbours are equally likely."""
    number, neighbour = (bits(side, first, 5) for side in shift_of(name))
    assert p_value(32 * number + neighbour, 1024) > FALSE_ALARM_RATE


@pytest.mark.parametrize("name", ["token", "position", "seed"])
def test_every_bit_changes_with_its_neighbours_half_of_the_time(name: str) -> None:
    """Each of the first 50 bits, with the limit of a single one divided among them."""
    number, neighbour = ((side * 2.0**50).long() for side in shift_of(name))
    changed = torch.stack([((number ^ neighbour) >> bit & 1).double().mean() for bit in range(50)])
    limit = NormalDist().inv_cdf(1 - FALSE_ALARM_RATE / 100) * 0.5 / math.sqrt(number.numel())
    assert (changed - 0.5).abs().max() < limit


def test_the_same_tests_find_a_bad_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mixing, numbers are those of a lattice."""
    monkeypatch.setattr(numbers, "mix_bits", lambda state: state)
    number, neighbour = (bits(side, 0, 5) for side in shift_of("token"))
    assert p_value(32 * number + neighbour, 1024) < FALSE_ALARM_RATE


def test_purposes_do_not_share_numbers() -> None:
    first, second = (uniforms(torch.arange(SIDE)[:, None], purpose, torch.arange(SIDE)) for purpose in (1, 2))
    assert p_value(32 * bits(first, 0, 5) + bits(second, 0, 5), 1024) > FALSE_ALARM_RATE


@pytest.mark.parametrize("state", [0, -1])
def test_no_number_is_0_or_1(state: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the hashes whose bits are all 0, or all 1."""
    monkeypatch.setattr(numbers, "mix_bits", lambda _: torch.tensor([state]))
    number, gumbel = uniforms(torch.tensor([0])).item(), gumbels(torch.tensor([0])).item()
    assert number == (2.0**-53 if state == 0 else 1 - 2.0**-53)
    assert gumbel == pytest.approx(-math.log(-math.log(number)), rel=1e-6)
    assert -3.7 < gumbel < 36.8


def test_gumbel_numbers_have_their_distribution() -> None:
    draws = gumbels(torch.tensor([5]), PURPOSE, torch.arange(1 << 18))
    assert draws.dtype == torch.float32
    assert kstest(draws.double().numpy(), "gumbel_r").pvalue > FALSE_ALARM_RATE


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gumbel_numbers_are_float32_on_every_device(device: str) -> None:
    draws = gumbels(
        torch.zeros(2, 1, dtype=torch.long, device=device), PURPOSE, torch.arange(5, device=device)
    )
    assert draws.dtype == torch.float32 and draws.shape == (2, 5)


def test_the_largest_numbers_of_a_vocabulary_are_not_coarse() -> None:
    """Those that win among 131,072 tokens: numbers u of 24 bits would leave them 4,096 values."""
    draws = gumbels(torch.tensor([5]), PURPOSE, torch.arange(1 << 22))
    highest = draws.double().topk(1 << 10).values
    threshold = highest[-1].item()
    assert len(set(highest.tolist())) == 1 << 10
    assert kstest((highest[:-1] - threshold).numpy(), "expon").pvalue > FALSE_ALARM_RATE


def test_splitmix64_is_that_of_its_authors() -> None:
    """The reference sequence of seed 1234567: a state of 0 plus steps, as hashed for consecutive last counters."""
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    steps = 1234567 + numbers.STEP * torch.arange(1, 4)
    assert [value % 2**64 for value in numbers.mix_bits(steps).tolist()] == reference
