"""When a step copies: what is believed of copies, and which are worth more than the leader."""

from __future__ import annotations

import random
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from clover.drafting import AutoPolicy, Copier, Repetition, Running, StepOutcome, make_policy
from clover.drafting.auto import Candidate
from clover.drafting.copying import LENGTHS, CopyEstimate, Copying
from clover.drafting.tuning import PLAIN, Choice, Tuning, VerifyCost
from tests.drafting.test_auto import scripted_draft

PERIOD = list(range(10, 22))


def running(*texts: list[int], temperature: float = 0.0, **others: Any) -> Running:
    rows = [Repetition(text) for text in texts]
    return Running(len(rows), 100, temperature, repetitions=lambda: rows, **others)


def test_what_is_expected_of_a_copy_is_the_sum_of_its_chances() -> None:
    estimate = CopyEstimate()
    expected, reached = 0.0, 1.0
    for copied in range(31):
        reached *= estimate._of(6 + copied).value
        expected += reached
        if copied + 1 in LENGTHS:
            found = estimate.accepted(6, LENGTHS)[LENGTHS.index(copied + 1)]
            assert found == pytest.approx(expected)
    assert estimate.accepted(0, LENGTHS) == [0.0] * len(LENGTHS)


def test_a_longer_match_promises_more_before_anything_is_seen() -> None:
    found = [CopyEstimate().accepted(length, (15,))[0] for length in (0, 3, 5, 8, 16, 64)]
    assert found == sorted(found) and found[0] == 0 and 13 > found[-1] > 8


@pytest.mark.parametrize("right", [True, False])
def test_every_token_teaches_what_a_copy_of_it_would_have_been_worth(right: bool) -> None:
    estimate, repetition = CopyEstimate(), Repetition(PERIOD * 3)
    for new in range(40):
        repetition.extend(PERIOD if right else [*PERIOD[:4], 100 + new])
        estimate.learn(repetition)
    assert repetition.judged == []
    assert estimate.accepted(48, (15,))[0] > 14 if right else estimate.accepted(4, (15,))[0] < 1


def test_old_tokens_are_forgotten() -> None:
    estimate, repetition = CopyEstimate(), Repetition([1, 2, 3, 4])
    for length, count in ((True, 4000), (False, 600)):
        repetition.judged = [(5, length)] * count
        estimate.learn(repetition)
    assert estimate.accepted(5, (1,))[0] < 0.12


def test_rows_are_told_apart_and_texts_by_their_temperature() -> None:
    copying = Copying((3, 7))
    for texts, repeats in (
        (([1, 2, 3],), False),
        ((PERIOD * 3, [4, 5]), False),
        ((PERIOD * 3, PERIOD * 2), True),
    ):
        copying.enter(running(*texts))
        assert copying.repeats is repeats
    found = tokens(copying, running(PERIOD * 3, PERIOD[:3] * 2))
    assert found["copy:7"] > found["copy:3"] > 2
    assert tokens(copying, running(PERIOD * 3))["copy:7"] > found["copy:7"]
    both = running(PERIOD * 3, PERIOD * 2)
    for row in both.repetitions():
        row.judged = [(24, False)] * 400
    assert tokens(copying, both)["copy:7"] < found["copy:7"]
    assert tokens(copying, running(PERIOD * 3, PERIOD[:3] * 2, temperature=1.0)) == found
    assert list(tokens(copying, running(PERIOD * 3), room=6)) == ["copy:3"]


def tokens(copying: Copying, now: Running, room: int = 100) -> dict[str, float]:
    copying.enter(now)
    return copying.tokens({PLAIN: 1.0, "copy:3": 1.0, "copy:7": 1.0}, room)


def policy(**costs: float) -> tuple[AutoPolicy, Any]:
    drafter: Any = SimpleNamespace(max_nodes=3, max_depth=2)
    named = {name.replace("_", ":"): seconds for name, seconds in costs.items()}
    known = {PLAIN: 1.0, "chain:2": 1.5, **named}
    return AutoPolicy([Candidate("chain:2", drafter, 1.0)], {1: known, 2: known}, 200.0, (3, 15)), drafter


def test_copies_are_made_where_they_are_faster_than_what_leads() -> None:
    looping, fresh = PERIOD * 5, list(range(50))
    auto, drafter = policy(copy_3=1.1, copy_15=1.3)
    chosen = auto.choose(running(looping))
    assert isinstance(chosen, Copier) and chosen.max_depth == 15
    assert auto.choose(running(fresh)) is drafter
    assert auto.leader == "chain:2"
    auto, drafter = policy(copy_3=1.1, copy_15=9.0)
    chosen = auto.choose(running(looping))
    assert isinstance(chosen, Copier) and chosen.max_depth == 3
    auto, drafter = policy(copy_3=4.0, copy_15=15.0)
    assert auto.choose(running(looping)) is drafter


def test_no_row_becomes_slower_than_plain_steps_for_the_others_copies() -> None:
    looping, fresh = PERIOD * 5, list(range(50))
    auto, drafter = policy(copy_3=1.2, copy_15=1.5)
    assert isinstance(auto.choose(running(looping, looping)), Copier)
    assert auto.choose(running(looping, fresh)) is drafter


def test_costs_of_copies_are_guessed_and_then_learned() -> None:
    auto, drafter = policy()
    step = running(PERIOD * 5)
    chosen = [auto.choose(step)]
    for _ in range(40):
        seconds = 40.0 if isinstance(chosen[-1], Copier) else 1.5
        nodes = 3 if chosen[-1] is drafter else 16
        auto.record(StepOutcome(1, 100, chosen[-1], nodes, (2,), seconds, 0.0, 0))
        chosen.append(auto.choose(running([1, 2, 3]) if len(chosen) < 8 else step))
    copied = [one for one in chosen[8:] if isinstance(one, Copier)]
    assert 0 < len(copied) < 16, "the guess is soon given up, as a step takes forty times as long"
    assert chosen[-1] is drafter


def test_a_tuning_tells_what_copies_cost() -> None:
    verify = tuple(VerifyCost(1, nodes, 100, 0.01 + 0.001 * nodes) for nodes in (1, 9, 33))
    choices = (Choice(1, "chain:2", 1.9, 0.02, 90.0), Choice(1, PLAIN, 1.0, 0.022, 50.0))
    found = Tuning("cpu", "float32", "", 1, "", {}, "", verify, choices)
    made = make_policy(scripted_draft(), found)
    costs = made._sizes[0].costs.relative
    assert costs["copy:15"] == pytest.approx(0.022 * 0.026 / 0.011)
    assert made._sizes[0].names == (PLAIN, "chain:2"), "copies need no trials"
    assert not isinstance(
        make_policy(scripted_draft(), found, copies=False).choose(running(PERIOD * 3)), Copier
    )


def simulated_seconds(text: list[int], copies: tuple[int, ...], seed: int) -> tuple[float, int]:
    """Time of a run of one row, and steps that copied; a drafted token is right with a chance of 0.75, 10 at most."""
    rng, at, total, copied = random.Random(seed), 10, 0.0, 0
    seconds = {PLAIN: 10.0, "chain:10": 16.0, **{f"copy:{length}": 10 + 0.2 * length for length in copies}}
    drafter: Any = SimpleNamespace(max_nodes=11, max_depth=10)
    auto = AutoPolicy([Candidate("chain:10", drafter, 2.8)], {1: seconds}, 200.0, copies)
    row = Repetition(text[:at])
    while at < len(text):
        chosen = auto.choose(Running(1, at, repetitions=lambda: [row]))
        if isinstance(chosen, Copier):
            proposed, name = row.copy(chosen.max_depth), f"copy:{chosen.max_depth}"
            right = [a == b for a, b in zip(proposed, text[at:], strict=False)]
        else:
            right, name = (
                [rng.random() < 0.75 for _ in range(10 if chosen else 0)],
                "chain:10" if chosen else PLAIN,
            )
        emitted = 1 + (right.index(False) if False in right else len(right))
        took = seconds[name] * rng.lognormvariate(0, 0.05)
        auto.record(StepOutcome(1, at, chosen, chosen.max_nodes if chosen else 1, (emitted,), took, 0.0, 0))
        row.extend(text[at : at + emitted])
        at, total, copied = at + emitted, total + seconds[name], copied + isinstance(chosen, Copier)
    return total, copied


@pytest.mark.parametrize("tokens", [2, 3, 5, 12])
def test_texts_whose_repetitions_mean_nothing_lose_next_to_nothing(tokens: int) -> None:
    """Of few tokens everything has stood before, and what follows is chance all the same."""
    ratios = []
    for seed in range(4):
        text = [random.Random(seed + at).randrange(tokens) for at in range(3000)]
        with_copies, _ = simulated_seconds(text, LENGTHS, seed)
        ratios.append(with_copies / simulated_seconds(text, (), seed)[0])
    assert fmean(ratios) < 1.03


def test_texts_that_repeat_what_stood_before_gain() -> None:
    rng = random.Random(0)
    parts = [[rng.randrange(100) for _ in range(30)] for _ in range(8)]
    text = [token for _ in range(60) for token in rng.choice(parts)]
    without, none = simulated_seconds(text, (), 1)
    found, copied = simulated_seconds(text, LENGTHS, 1)
    assert none == 0 < copied
    assert found < 0.6 * without
