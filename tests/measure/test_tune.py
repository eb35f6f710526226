"""The whole of a tuning on a tiny target."""

import io
import json
import re
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from clover import assets
from clover.drafting import parse_tree
from clover.drafting.tuning import Tuning, read_tuning
from clover.drafts import load_draft
from clover.errors import UserError
from clover.measure.budget import Budget
from clover.measure.options import TuneOptions
from clover.measure.session import PLAIN
from clover.measure.tune import run_tune
from clover.target import TargetModel
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def options(pair: tuple[Path, Path], tmp_path: Path) -> TuneOptions:
    return make_options(pair, tmp_path)


def make_options(pair: tuple[Path, Path], folder: Path) -> TuneOptions:
    prompts = folder / "prompts.txt"
    prompts.write_text("the quick fox\njumps over\na lazy dog, and then\n")
    return TuneOptions(
        files=(str(prompts),), target=str(pair[0]), draft=str(pair[1]), batch_sizes=(1, 2), max_new_tokens=12,
        max_minutes=9.0, output=folder / "out" / "tuning.json",
    )  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    options: TuneOptions
    tuning: Tuning
    out: str
    folder: Path


@pytest.fixture(scope="module")
def tuned(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """One tuning with all files, which several tests look at."""
    folder = tmp_path_factory.mktemp("tuned")
    options = replace(make_options(pair, folder), json=folder / "found.json")
    tuning, out = tune(options)
    return Tuned(options, tuning, out, folder)


def tune(options: TuneOptions) -> tuple[Tuning, str]:
    out = io.StringIO()
    tuning = run_tune(options, Console(file=out, width=100), Console(file=io.StringIO()))
    return tuning, out.getvalue()


def test_a_tuning_from_prompts_to_file(tuned: Tuned) -> None:
    options = tuned.options
    assert options.output is not None
    (entry,) = read_tuning(options.output).entries
    assert entry == tuned.tuning
    target = TargetModel.load(str(options.target))
    assert read_tuning(options.output).find(target) == entry
    draft = load_draft(str(options.draft), target)
    assert entry.batch_sizes == (1, 2)
    for size in entry.batch_sizes:
        choices = entry.choices_for(size)
        speeds = [choice.tokens_per_second for choice in choices]
        assert speeds == sorted(speeds, reverse=True)
        assert {PLAIN, "chain:1", "chain:2", "chain:4"} < {choice.tree for choice in choices}
        for choice in choices:
            assert choice.tokens_per_second == pytest.approx(choice.tau * size / choice.step_seconds)
            if choice.tree != PLAIN:
                parse_tree(choice.tree).drafter(draft)
        assert {1, 2, 17, 33} <= {cost.nodes for cost in entry.verify if cost.batch_size == size}
    assert "plain decoding" in tuned.out


class Ticking(Budget):
    """A budget whose clock each look at it moves on by a tenth of a second."""

    def __init__(self, minutes: float):
        ticks = count(0, 1)
        super().__init__(minutes, lambda: next(ticks) / 10)


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[Ticking]:
    """What a tuning measures its time by."""
    made = list[Ticking]()
    monkeypatch.setattr(
        "clover.measure.tune.Budget", lambda minutes: made.append(Ticking(minutes)) or made[-1]
    )
    return made


def test_all_ends_a_unit_after_the_time_is_over(options: TuneOptions, budgets: list[Ticking]) -> None:
    """Half a minute is over after 300 looks: steps, positions and trees stop there, and what was left out is named."""
    tuning, out = tune(replace(options, max_new_tokens=60, max_minutes=0.5))
    assert 30 <= budgets[0].used < 32  # with looks by the report
    assert tuning.batch_sizes == (1,) and PLAIN in {choice.tree for choice in tuning.choices}
    words = " ".join(out.replace("│", " ").split())
    assert "of each tree at batch size 1; batch size 2; by --max-minutes 0.5" in words


def test_trees_that_were_not_reached_are_named(options: TuneOptions, budgets: list[Ticking]) -> None:
    tuning, out = tune(replace(options, max_new_tokens=60, max_minutes=0.08))
    words = " ".join(out.replace("│", " ").split())
    timed, named = {choice.tree for choice in tuning.choices}, re.search("at batch size 1 (.*?);", words)
    assert named and "chain:" in named[1] and len(timed) >= 2
    assert not timed & {*named[1].split(", ")}
    assert int(re.search(r" (\d+) tokens? in all", words)[1]) < 60  # type: ignore[index]


@pytest.mark.parametrize("minutes", [0.0, 0.01])
def test_too_little_time_for_texts_is_said_and_nothing_is_saved(
    options: TuneOptions, budgets: list[Ticking], minutes: float
) -> None:
    with pytest.raises(
        UserError, match=f"--max-minutes {minutes:g} is too short: loading took 0 s, and then"
    ):
        tune(replace(options, max_new_tokens=60, max_minutes=minutes))
    assert options.output is not None and not options.output.exists()


def test_prompts_that_do_not_fit_are_counted(
    options: TuneOptions, tmp_path: Path, budgets: list[Ticking]
) -> None:
    (tmp_path / "long.txt").write_text("the quick fox\n" + "x" * 300 + "\n")
    _, out = tune(replace(options, files=(str(tmp_path / "long.txt"),), max_minutes=0.5, max_new_tokens=4))
    assert "1 prompt (1 more do not fit into the context)" in out


def test_the_json_file_holds_all_trees(tuned: Tuned) -> None:
    found = json.loads((tuned.folder / "found.json").read_text())
    assert found["provenance"]["command"].startswith("clover tune ") and found["prompts"] == 3
    assert [one["tree"] for one in found["trees"]] == [choice.tree for choice in tuned.tuning.choices]
    for one in found["trees"]:
        assert one["steps"] >= 8
        assert (one["speedup"] == 1.0) or one["tree"] != PLAIN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"draft": None}, "give its draft"),
        ({"draft": "smollm2/none", "output": None}, "give --output FILE"),
        (
            {"target": None, "draft": None, "output": None},
            "in a package, where nothing is .* give --output FILE",
        ),
        ({"draft": "smollm2/recall", "output": None}, "in a package, where nothing is written"),
        ({"draft": str(assets.DRAFT), "output": None}, "in a package, where nothing is written"),
        ({"output": assets.DRAFT / "tuning.json"}, "in a package, where nothing is written"),
        ({"output": assets.SMOLLM2 / "new" / "tuning.json"}, "in a package, where nothing is written"),
        ({"json": Path()}, "is a directory"),
    ],
)
def test_mistakes_are_named_before_any_time_is_spent(
    options: TuneOptions, changes: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.measure.tune.rank_paths", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(UserError, match=message):
        tune(replace(options, **changes))


def test_a_file_that_is_no_tuning_is_not_written_over(options: TuneOptions) -> None:
    assert options.output is not None
    options.output.parent.mkdir()
    options.output.write_text("{}")
    with pytest.raises(UserError, match="has no tuning of format .*; remove it and measure anew"):
        tune(options)
    assert options.output.read_text() == "{}"


def test_the_file_lies_with_the_draft_unless_it_cannot(
    options: TuneOptions, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, budgets: list[Ticking]
) -> None:
    beside = replace(options, output=None, batch_sizes=(1,), max_new_tokens=1, max_minutes=0.5)
    tune(beside)
    (pair[1] / "tuning.json").unlink()
    monkeypatch.setattr("clover.measure.tune.os.access", lambda *_: False)
    with pytest.raises(UserError, match="cannot be written; give --output FILE"):
        tune(beside)
