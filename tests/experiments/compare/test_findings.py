"""The numbers of a comparison, from results made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log, sqrt
from pathlib import Path

import pytest

from clover.errors import UserError
from clover.files import append_lines
from experiments.compare.findings import Ablation, Findings, Row
from experiments.compare.plan import MethodKey
from experiments.compare.results import Record, read_records
from tests.experiments.compare.hand import Prompt, measured, trained

OURS, THEIRS = MethodKey("clover2", "chain:1", seed=0), MethodKey("medusa", "chain:1", seed=0)
# By task and seed, prompt by prompt: new tokens, steps, seconds, seconds of plain decoding.
OURS_DID: dict[tuple[str, int], list[Prompt]] = {
    ("code", 0): [(8, 5, 0.5, 1.0), (8, 4, 0.4, 1.0)],
    ("code", 1): [(8, 6, 0.6, 1.1), (8, 5, 0.5, 1.0)],
    ("chat", 0): [(8, 7, 0.9, 1.2), (6, 5, 0.8, 0.8)],
    ("chat", 1): [(8, 8, 1.0, 1.1), (6, 6, 0.7, 0.8)],
}
THEIRS_DID: dict[tuple[str, int], list[Prompt]] = {
    ("code", 0): [(8, 6, 0.6, 1.0), (8, 5, 0.7, 1.0)],
    ("code", 1): [(8, 6, 0.7, 1.1), (8, 6, 0.7, 1.0)],
    ("chat", 0): [(8, 8, 1.0, 1.2), (6, 6, 0.9, 0.8)],
    ("chat", 1): [(8, 8, 1.1, 1.1), (6, 6, 0.9, 0.8)],
}
OURS_RIGHT = {
    0: {"code": [(5, 8), (6, 8)], "chat": [(2, 8)]},
    1: {"code": [(6, 8), (6, 8)], "chat": [(1, 8)]},
}
THEIRS_RIGHT = {
    0: {"code": [(4, 8), (5, 8)], "chat": [(2, 8)]},
    1: {"code": [(4, 8), (6, 8)], "chat": [(1, 8)]},
}

Deviations = tuple[
    float, list[float], list[float]
]  # a ratio, and how far each prompt and each seed pulls it away


def of_seed(method: MethodKey, seed: int) -> MethodKey:
    return replace(method, seed=seed)


def draft(method: MethodKey, seed: int) -> MethodKey:
    return replace(method, tree=None, seed=seed)


def cells() -> list[Record]:
    """Two runs that were joined: of each system one, and the other's tasks come in another order."""
    ours = [measured(task, {of_seed(OURS, seed): did}) for (task, seed), did in OURS_DID.items()]
    theirs = [
        measured(task, {of_seed(THEIRS, seed): THEIRS_DID[task, seed]})
        for task, seed in (("chat", 0), ("code", 0), ("code", 1), ("chat", 1))
    ]
    heads = [trained(draft(OURS, seed), right, "medusa") for seed, right in OURS_RIGHT.items()]
    return [*ours, *theirs, *heads, *(trained(draft(THEIRS, seed), r) for seed, r in THEIRS_RIGHT.items())]


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    append_lines(tmp_path / "results.jsonl", cells())
    return read_records(tmp_path / "results.jsonl")


def row_of(findings: Findings, system: str) -> Row:
    (row,) = (row for row in findings.rows if row.series.method.system == system)
    return row


def deviations(pairs: Sequence[Sequence[tuple[float, float]]]) -> Deviations:
    """Reference, from a grid of seeds and prompts."""
    whole = sum(below for seed in pairs for _, below in seed)
    value = sum(above for seed in pairs for above, _ in seed) / whole
    grid = [[(above - value * below) / whole for above, below in seed] for seed in pairs]
    return value, [sum(column) for column in zip(*grid)], [sum(seed) for seed in grid]


def error(prompts: Sequence[float], seeds: Sequence[float]) -> float:
    return hypot(*(sqrt(sum(d * d for d in some) * len(some) / (len(some) - 1)) for some in (prompts, seeds)))


def grid(did: dict[tuple[str, int], list[Prompt]]) -> list[list[Prompt]]:
    return [[*did["code", seed], *did["chat", seed]] for seed in (0, 1)]


def taus(did: dict[tuple[str, int], list[Prompt]]) -> list[list[tuple[float, float]]]:
    return [[(tokens, steps) for tokens, steps, *_ in seed] for seed in grid(did)]


def ablation(records: list[Record]) -> Ablation:
    (found,) = Findings(records).ablations()
    return found


def test_speedup_is_a_geometric_mean_over_prompts_with_errors_over_prompts_and_seeds(
    records: list[Record],
) -> None:
    logs = [[(log(plain / own), 1.0) for _, _, own, plain in seed] for seed in grid(OURS_DID)]
    mean, prompts, seeds = deviations(logs)
    found = row_of(Findings(records), "clover2").speedup.geometric
    product = (2 * 2.5 * 11 / 6 * 2) * (4 / 3 * 1 * 1.1 * 8 / 7)  # of all eight speed-ups
    assert found.value == pytest.approx(product ** (1 / 8))
    assert found.error == pytest.approx(exp(mean) * error(prompts, seeds))


def test_tau_is_tokens_by_steps_whatever_the_order_of_the_tasks(records: list[Record]) -> None:
    for system, did in (("clover2", OURS_DID), ("medusa", THEIRS_DID)):
        value, prompts, seeds = deviations(taus(did))
        for order in (records, records[::-1]):
            found = row_of(Findings(order), system).tau.estimate
            assert (found.value, found.error) == pytest.approx((value, error(prompts, seeds)))


def paired(ours: Deviations, theirs: Deviations) -> float:
    """The error of a difference, prompt by prompt and seed by seed."""
    prompts, seeds = ([a - b for a, b in zip(own, other)] for own, other in zip(ours[1:], theirs[1:]))
    return error(prompts, seeds)


@pytest.mark.parametrize("backwards", [False, True])
def test_an_ablation_is_paired_by_prompt_and_seed_whatever_the_order_of_the_tasks(
    records: list[Record], backwards: bool
) -> None:
    ours, theirs = deviations(taus(OURS_DID)), deviations(taus(THEIRS_DID))
    found = ablation(records[::-1] if backwards else records).tau
    assert found is not None and found.estimate.value == pytest.approx(ours[0] - theirs[0])
    assert found.estimate.error == pytest.approx(paired(ours, theirs))
    assert found.estimate.error < 0.6 * hypot(error(*ours[1:]), error(*theirs[1:]))


def test_heads_are_paired_by_text(records: list[Record]) -> None:
    def texts(right: dict[int, dict[str, list[tuple[int, int]]]]) -> list[list[tuple[int, int]]]:
        return [[*seed["code"], *seed["chat"]] for seed in right.values()]

    ours, theirs = deviations(texts(OURS_RIGHT)), deviations(texts(THEIRS_RIGHT))
    found = ablation(records).top5[0].estimate
    assert found.value == pytest.approx(ours[0] - theirs[0])
    assert found.error == pytest.approx(paired(ours, theirs))


def test_heads_on_other_texts_are_not_paired() -> None:
    ours, theirs = (
        trained(draft(OURS, 0), OURS_RIGHT[0], "medusa"),
        trained(draft(THEIRS, 0), THEIRS_RIGHT[0]),
    )
    other = trained(draft(THEIRS, 0), THEIRS_RIGHT[0], config={"prompts": 3})
    same, apart = (ablation([ours, one]).top5[0].estimate for one in (theirs, other))
    errors = [Findings([one]).heads for one in (ours, other)]
    alone = [next(iter(heads.values()))["top 5"][0].estimate.error for heads in errors]
    assert same.value == apart.value and same.error is not None and apart.error is not None
    assert apart.error == pytest.approx(hypot(*filter(None, alone))) and apart.error > same.error


def test_a_seed_with_fewer_prompts_keeps_its_error(records: list[Record]) -> None:
    fewer = [one for one in records if one != records[3]]  # without chat of the second seed
    found, whole = row_of(Findings(fewer), "clover2"), row_of(Findings(records), "clover2")
    assert found.tasks == {"code"} and whole.tasks == {"code", "chat"}
    assert set(found.tau.seeds) == {0, 1} and found.tau.estimate.error is not None
    assert found.tau.estimate.error > error(*deviations(taus(OURS_DID))[1:]) / 2


def test_a_row_that_lacks_a_task_is_not_complete(records: list[Record]) -> None:
    findings = Findings([one for one in records if one != records[4]])  # without chat of their first seed
    assert {row.series.method.system for row in findings.complete_rows} == {"plain", "clover2"}
    assert [one.tau for one in findings.ablations()] == [None]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_new_tokens": 16}, {"8 new tokens", "16 new tokens"}),
        (
            {"place": {"target": "tiny", "device": "cpu", "dtype": "bfloat16", "weights": "0" * 32}},
            {"float32", "bfloat16"},
        ),
    ],
)
def test_results_of_other_conditions_are_rows_of_their_own(config: dict, words: set[str]) -> None:
    did = OURS_DID["code", 0]
    findings = Findings([measured("code", {OURS: did}), measured("chat", {OURS: did}, config)])
    ours = [row for row in findings.rows if row.nodes]
    assert [len(row.runs) for row in ours] == [1, 1] and findings.complete_rows == []
    assert {findings.label(row.series).removeprefix("Clover-2 (paper), ") for row in ours} == words


def test_of_two_results_of_a_draft_the_later_counts(records: list[Record]) -> None:
    earlier = trained(draft(OURS, 0), {"code": [(0, 8), (0, 8)], "chat": [(0, 8)]})
    assert Findings([earlier, *records]).heads == Findings(records).heads
    assert Findings([*records, earlier]).heads != Findings(records).heads


def test_a_damaged_configuration_is_named(records: list[Record]) -> None:
    with pytest.raises(UserError, match="result abc: place is missing"):
        Findings([replace(records[0], key="abc", config={})])
    with pytest.raises(UserError, match="no results"):
        Findings([])
