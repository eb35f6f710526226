"""The numbers of a comparison, from results made by hand."""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from pathlib import Path

import pytest

from clover.errors import UserError
from clover.files import append_lines
from experiments.compare.findings import Ablation, Findings, Row
from experiments.compare.plan import MethodKey
from experiments.compare.report import write_report
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

GOLDEN = Path(__file__).with_name("report.golden.md")


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


def ablation(records: list[Record]) -> Ablation:
    (found,) = Findings(records).ablations()
    return found


def test_the_report_is_the_one_that_was_checked_by_hand(records: list[Record], tmp_path: Path) -> None:
    """Speed-ups are geometric means; errors are over prompts and seeds; differences are paired by both."""
    write_report(records, tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text() == GOLDEN.read_text()


def test_the_order_of_the_tasks_decides_nothing(records: list[Record]) -> None:
    ours, theirs = Findings(records), Findings(records[::-1])
    for system in ("clover2", "medusa"):
        assert row_of(ours, system).tau.estimate.text() == row_of(theirs, system).tau.estimate.text()
    ((one,), (other,)) = ours.ablations(), theirs.ablations()
    assert one.tau is not None and other.tau is not None
    assert one.tau.estimate.text() == other.tau.estimate.text()
    assert one.top5[0].estimate.text() == other.top5[0].estimate.text()


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
    assert found.tau.estimate.error > (whole.tau.estimate.error or 0) / 2


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
