"""What the tables of results made by hand say."""

from __future__ import annotations

from dataclasses import replace

from clover.measure.report.table import Table
from experiments.compare.findings import Findings
from experiments.compare.plan import MethodKey
from experiments.compare.results import Record, Trained
from experiments.compare.tables import make_tables
from tests.experiments.compare.hand import measured, trained

OURS, THEIRS = MethodKey("clover2", "chain:1"), MethodKey("medusa", "chain:1")
FAST, SLOW = [(8, 4, 0.5, 1.0), (8, 5, 0.4, 1.0)], [(8, 6, 0.9, 1.0), (8, 7, 0.8, 1.0)]


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.title: table for table in make_tables(Findings(records))}


def test_a_method_without_results_of_a_task_has_no_number_for_all() -> None:
    found = tables([measured("code", {OURS: FAST, THEIRS: SLOW}), measured("chat", {OURS: FAST})])
    rows = found["Speed-up by task, temperature 0, batch 1"].rows
    lacking = [[cell == "–" for cell in row[1:]] for row in rows]  # code, chat, all
    assert lacking == [[False, False, False], [False, True, True]]
    names = [row[0] for row in found["Speed"].rows]
    assert [name.endswith(" (1 of 2 tasks)") for name in names] == [False, False, True]
    assert "A row with fewer says so" in found["Speed"].note
    assert found["τ by task, temperature 0, batch 1"].columns == ("method", "code", "chat", "all")
    alone = tables([measured("code", {OURS: FAST, THEIRS: SLOW})])["Speed"]
    assert not any("tasks)" in row[0] for row in alone.rows) and "fewer" not in alone.note


def test_only_a_difference_beyond_two_standard_errors_is_marked() -> None:
    def ablation(right: list[tuple[int, int]]) -> str:
        ours = trained(MethodKey("clover2"), {"code": right}, "medusa")
        theirs = trained(MethodKey("medusa"), {"code": [(4, 10), (4, 10)]})
        ((_, _, top5, tau),) = tables([ours, theirs])["Ablation"].rows
        assert tau == "–"
        return top5

    # Of two texts of 10 positions each the error is half the difference of their shares.
    assert ablation([(4, 10), (8, 10)]) == "+20.0 ± 20.0"
    assert ablation([(6, 10), (8, 10)]) == "+30.0 ± 10.0 *"
    assert ablation([(0, 10), (1, 10)]) == "-35.0 ± 5.0 *"


def test_a_draft_of_a_directory_is_told_by_its_record() -> None:
    record = trained(MethodKey("clover2"), {"code": [(4, 10)]})
    (bare,) = (table for table in make_tables(Findings([record])) if table.title == "Training")
    assert "steps" not in bare.columns
    assert isinstance(record.result, Trained)
    how = MethodKey("clover2", None, "paper", 3000, 0.00176777)
    told = tables([replace(record, result=replace(record.result, recorded=how))])["Training"]
    assert told.rows[0][:5] == ("Clover-2 (paper)", "10", "paper", "0.00177", "3,000")


def test_only_what_was_measured_is_explained() -> None:
    """Suites name trees and seeds of which a run may have none."""
    both = [OURS, replace(OURS, tree="drawn:chain:1"), replace(OURS, seed=1)]
    notes = [tables([measured("code", dict.fromkeys(some, FAST))])["Speed"].note for some in (both, both[:1])]
    assert ["drawn" in note for note in notes] == ["several seeds" in note for note in notes] == [True, False]
