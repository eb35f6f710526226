"""When a training has paid for itself, and what is known of what it took."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clover.measure.cost import TrainingCost, as_data, break_even_table, recorded_cost, run_cost
from clover.measure.options import CostOptions
from clover.measure.step_costs import TextCost, TreeCost
from clover.measure.steps import StepCost
from clover.train.record import RECORD_FILE
from tests.tiny import save_tiny_pair


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


@pytest.mark.parametrize("start_from", [{}, {"start_from": None}, {"start_from": "first"}])
def test_a_training_that_went_on_from_another_says_that_it_counts_alone(
    tmp_path: Path, start_from: dict[str, Any]
) -> None:
    cost = recorded_cost(str(write_record(tmp_path, start_from)))
    assert cost is not None and cost.seconds == 90
    more = "; it went on from first, whose training is not counted" if start_from.get("start_from") else ""
    assert cost.words == f"1:30 min{more}"


@pytest.mark.parametrize(("minutes", "said"), [(None, "first"), (3.0, None)])  # 3 minutes are all of it
def test_the_report_says_so_unless_the_user_told_the_time(
    tmp_path: Path, minutes: float | None, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = save_tiny_pair(tmp_path)
    write_record(draft, {"start_from": "first"})
    prompts, file = tmp_path / "prompts.txt", tmp_path / "cost.json"
    prompts.write_text("one two\n")
    given: dict[str, Any] = {
        "prompts": (str(prompts),),
        "target": str(target),
        "draft": str(draft),
        "json": file,
    }
    quick: dict[str, Any] = {
        "trees": ("chain:1",),
        "batch_sizes": (1,),
        "max_new_tokens": 8,
        "max_minutes": 0.01,
    }
    run_cost(CostOptions(minutes=minutes, price=2.0, **given, **quick))
    found = json.loads(file.read_text())
    assert (found["training_start_from"], found["training_seconds"]) == (said, 60 * (minutes or 1.5))
    assert ("went on from first" in capsys.readouterr().out) == (said is not None)


def write_record(folder: Path, config: dict[str, Any]) -> Path:
    result = {"steps": 3, "tokens": 9, "seconds": 60.0, "training": {"loss": 2.0}, "validation": None}
    record = {"result": result, "config": {"writing_seconds": 30.0} | config}
    (folder / RECORD_FILE).write_text(json.dumps(record))
    return folder


def test_a_tau_that_the_tree_cannot_give_is_not_one_that_never_pays() -> None:
    plain = TextCost(100, 0.1, StepCost(1, "plain", 1, 0.01, fixed=0.01))
    own = TextCost(100, 0.1, StepCost(1, "chain:2", 3, 0.011, fixed=0.011))  # a step is little dearer
    fast = TreeCost(plain, own, 2)
    taus, training = (1.0, 3.0, 3.5), TrainingCost(3600.0)
    ((batch, _, never, paid, beyond),) = break_even_table([fast], training, taus).rows
    assert (batch, never, beyond) == ("1", "never", "–") and paid not in ("never", "–")
    found = as_data(fast, training, taus)
    assert found["paying_tokens_at"]["1"] is None and found["paying_tokens_at"]["3"] > 0
    assert set(found["paying_tokens_at"]) == set(found["speedup_at"]) == {"1", "3"}


def test_the_smallest_batch_is_measured_first_and_said_at_once(tmp_path: Path) -> None:
    target, draft = save_tiny_pair(tmp_path)
    (tmp_path / "prompts.txt").write_text("one two\n")
    shown, told = Console(file=io.StringIO(), width=100), Console(file=io.StringIO(), width=100)
    given: dict[str, Any] = {"target": str(target), "draft": str(draft), "trees": ("chain:1", "clover2")}
    files: dict[str, Any] = {"prompts": (str(tmp_path / "prompts.txt"),), "max_new_tokens": 8}
    run_cost(CostOptions(batch_sizes=(4, 1), max_minutes=0.0, **given, **files), shown, told)
    report, lines = shown.file.getvalue(), told.file.getvalue()  # type: ignore[attr-defined]
    words = " ".join(report.replace("│", " ").split())
    assert re.search("at batch size 1 (chain:1|clover2); batch size 4; by --max-minutes 0", words)
    assert "chain:1" in report and "clover2" in report and "static" not in report
    assert re.search(r"batch 1: a plain step takes [0-9.]+ ± [0-9.]+ ms; ", lines)
