from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from clover.compare.plan import Cell, MeasuringCell, Place, TrainingCell, make_plan
from clover.compare.suite import Budget, MeasuringOptions, Suite, System, Task, TrainingOptions, read_suite
from clover.errors import UserError

PLACE = Place("embedded", "cpu", "float32")


def suite(**values: object) -> Suite:
    systems = (System("clover2"), System("clover2", "other", {"num_heads": 3}))
    known = {"systems": systems, "tasks": (Task("a", kind="prompts"), Task("b", kind="loops"))}
    return Suite("mine", **(known | values))  # type: ignore[arg-type]


def cells(chosen: Suite) -> dict[str, Cell]:
    return {cell.key: cell for cell in make_plan(chosen, PLACE).cells}


def test_size_of_the_plan() -> None:
    training = TrainingOptions(
        losses=("paper", "distillation"),
        budgets=(Budget(steps=5), Budget(minutes=1.0, losses=("distillation",))),
        learning_rates=(1e-3, 2e-3),
        seeds=(0, 1),
    )
    measuring = MeasuringOptions(batch_sizes=(1, 4, 8), temperatures=(0.0, 1.0))
    plan = make_plan(suite(training=training, measuring=measuring), PLACE)
    drafts = 2 * (2 * 2 * 2 + 1 * 2 * 2)  # systems, losses × rates × seeds of each budget
    groups, tasks = 2 * 2, 2  # budgets × seeds
    counted = Counter(cell.kind for cell in plan.cells)
    assert counted == {
        "text": 1,
        "training": drafts,
        "accuracy": drafts * tasks,
        "measuring": groups * tasks * 3 * 2,
    }
    assert len({cell.key for cell in plan.cells}) == len(plan.cells)


def test_a_system_may_have_its_own() -> None:
    own = System("clover2", "own", losses=("paper",), learning_rates=(1e-4,), trees=())
    plan = make_plan(suite(systems=(System("clover2"), own)), PLACE)
    trained = [cell.draft for cell in plan.cells if isinstance(cell, TrainingCell)]
    assert [(d.method.loss, d.method.learning_rate) for d in trained] == [
        ("distillation", 1e-3),
        ("paper", 1e-4),
    ]
    measured = {d.method.system for c in plan.cells if isinstance(c, MeasuringCell) for d in c.drafts}
    assert measured == {"clover2"}  # without a tree there is nothing to decode


def test_systems_without_weights_are_measured_with_all_others() -> None:
    plan = make_plan(suite(systems=(System("clover2"), System("lookup"))), PLACE)
    (training,) = (cell for cell in plan.cells if cell.kind == "training")
    assert "clover2" in training.label
    for cell in plan.cells:
        if isinstance(cell, MeasuringCell):
            assert [draft.kind for draft in cell.drafts] == ["clover2", "lookup"]
    alone = make_plan(suite(systems=(System("lookup"),)), PLACE)
    assert {cell.kind for cell in alone.cells} == {"measuring"}


def test_only_what_a_change_touches_is_new() -> None:
    before = suite()
    longer = cells(replace(before, measuring=MeasuringOptions(batch_sizes=(1, 2))))
    assert set(cells(before)) < set(longer)
    seeded = cells(replace(before, training=TrainingOptions(seeds=(1,))))
    assert {cell.kind for key, cell in seeded.items() if key in cells(before)} == {"text"}
    retitled = cells(replace(before, title="Another", note="x"))
    assert set(cells(before)) == set(retitled)


def test_the_name_of_a_system_does_not_decide_its_weights() -> None:
    plan = make_plan(suite(systems=(System("clover2"), System("clover2", "again"))), PLACE)
    first, second = (cell for cell in plan.cells if isinstance(cell, TrainingCell))
    assert first.weights == second.weights and first.key != second.key


def test_the_defaults_of_a_new_draft_are_spelt_out() -> None:
    spelt_out = System("clover2", "spelt out", {"start": "fresh", "num_augmenting_layers": 2})
    others = System("clover2", "others", {"start": "last_layer"})
    plan = make_plan(suite(systems=(System("clover2"), spelt_out, others)), PLACE)
    first, same, other = (cell.weights for cell in plan.cells if isinstance(cell, TrainingCell))
    assert first == same != other


def test_the_text_of_files_decides(tiny_files: Path) -> None:
    chosen = read_suite(str(tiny_files / "suite.toml"))
    before = cells(chosen)
    file = tiny_files / "lines.txt"
    old = file.read_text()
    file.write_text(old + "eight\n")
    try:
        kept = {cell.kind for key, cell in cells(chosen).items() if key in before}
    finally:
        file.write_text(old)
    assert kept == {"text", "training"}
    missing = replace(chosen, tasks=(Task("x", file="nowhere.txt"),))
    with pytest.raises(UserError, match="cannot read nowhere.txt"):
        make_plan(missing, PLACE)
