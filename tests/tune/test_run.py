"""The whole of a tuning on a tiny target."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from clover.drafting import make_drafter
from clover.drafting.tuning import PLAIN, read_tuning, target_fingerprint
from clover.drafts import load_draft
from clover.errors import UserError
from clover.target import TargetModel
from clover.tree import TreeShape, parse_tree
from clover.tune import TuneOptions, TuneReport, run, run_tune
from clover.tune.kept import kept_path
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def make_quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "_REPEATS", 2)
    patch.setattr(run, "_TRIAL_REPEATS", 3)


@pytest.fixture
def options(pair: tuple[Path, Path], tmp_path: Path) -> TuneOptions:
    return make_options(pair, tmp_path)


def make_options(pair: tuple[Path, Path], folder: Path) -> TuneOptions:
    prompts = folder / "prompts.txt"
    prompts.write_text("the quick fox\njumps over\na lazy dog, and then\n")
    return TuneOptions(
        files=(str(prompts),), target=str(pair[0]), draft=str(pair[1]), batch_sizes=(1, 2), max_new_tokens=12,
        max_minutes=0.01, output=folder / "out" / "tuning.json",
    )  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    options: TuneOptions
    report: TuneReport
    out: str
    folder: Path


@pytest.fixture(scope="module")
def tuned(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """One tuning with all files, which several tests look at."""
    folder = tmp_path_factory.mktemp("tuned")
    options = make_options(pair, folder)
    options = TuneOptions(**vars(options) | {"json": folder / "found.json", "picture": folder / "found.svg"})
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        report, out = tune(options)
    return Tuned(options, report, out, folder)


def tune(options: TuneOptions) -> tuple[TuneReport, str]:
    out = io.StringIO()
    report = run_tune(options, Console(file=out, width=100), Console(file=io.StringIO()))
    return report, out.getvalue()


def test_a_tuning_from_prompts_to_file(tuned: Tuned) -> None:
    options, report, out, folder = tuned.options, tuned.report, tuned.out, tuned.folder
    assert options.output is not None
    (entry,) = read_tuning(options.output).entries
    assert entry == report.tuning
    target = TargetModel.load(str(options.target))
    assert read_tuning(options.output).find("cpu", "float32", target_fingerprint(target.config)) == entry
    draft = load_draft(str(options.draft), target)
    assert entry.batch_sizes == (1, 2)
    for size in entry.batch_sizes:
        choices = entry.choices_for(size)
        speeds = [choice.tokens_per_second for choice in choices]
        assert speeds == sorted(speeds, reverse=True)
        assert [choice.tree for choice in choices].count(PLAIN) == 1 and len(choices) >= 3
        for choice in choices:
            assert choice.tokens_per_second == pytest.approx(choice.tau * size / choice.step_seconds)
            if choice.tree != PLAIN:
                make_drafter(draft, parse_tree(choice.tree))
    assert {cost.nodes for cost in entry.verify} >= {1, 2, 9, 33}
    assert "plain decoding" in out and f"wrote {options.output}" in out.replace("\n", " ")
    assert max(map(len, out.splitlines())) <= 100 + len(str(folder))
    assert (folder / "found.svg").read_text().startswith("<?xml")
    assert not kept_path(options.output).exists()


def test_the_json_file_holds_what_was_foretold_and_measured(tuned: Tuned) -> None:
    found = json.loads((tuned.folder / "found.json").read_text())
    assert found["command"].startswith("clover tune ") and found["prompts"] == 3
    for part, tried in zip(found["batch_sizes"], tuned.report.tried.values(), strict=True):
        assert part["tried"][0]["speedup"] >= 1.0
        for row, one in zip(part["tried"], tried, strict=True):
            static = row["tree"] == PLAIN or isinstance(parse_tree(row["tree"]), TreeShape)
            assert (row["predicted_tau"] is None) == (not static or row["tree"] == PLAIN)
            assert 0 < row["ideal_share"] <= 1.0 and 0 <= row["draft_share"] < 1
            assert row["tokens_per_second"] == one.trial.speed


def test_acceptance_is_foretold_exactly_where_whole_texts_are_decoded(options: TuneOptions) -> None:
    report, _ = tune(TuneOptions(**vars(options) | {"batch_sizes": (1,), "max_minutes": 5.0}))
    for one in report.tried[1]:
        if one.predicted is not None:
            assert one.trial.tau == pytest.approx(one.predicted.candidate.tau, rel=0.25)


def test_an_interrupted_tuning_goes_on(options: TuneOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.output is not None
    measured: list[str] = []
    costs, trials = run.measure_costs, run.try_trees

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "try_trees", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune(options)
    assert not options.output.exists() and kept_path(options.output).exists()
    monkeypatch.setattr(run, "try_trees", trials)
    monkeypatch.setattr(run, "write_texts", interrupt)
    monkeypatch.setattr(
        run, "measure_costs", lambda *given: (measured.append(len(given[3])), costs(*given))[1]
    )
    tune(options)
    assert set(measured) == {2}  # those of batch size 1 were kept
    assert options.output.exists() and not kept_path(options.output).exists()


def test_another_dtype_is_another_entry(options: TuneOptions) -> None:
    assert options.output is not None
    small = TuneOptions(**vars(options) | {"batch_sizes": (1,), "max_new_tokens": 4})
    tune(small)
    tune(TuneOptions(**vars(small) | {"dtype": "float64"}))
    assert [entry.dtype for entry in read_tuning(options.output).entries] == ["float32", "float64"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sizes": ()}, "no batch size"),
        ({"batch_sizes": (0,)}, "batch_size is 0"),
        ({"max_new_tokens": 1}, "max_new_tokens is 1"),
        ({"max_minutes": 0.0}, "max_minutes is 0"),
        ({"max_minutes": float("nan")}, "max_minutes is nan"),
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"draft": None}, "give its draft"),
        ({"draft": "lookup", "output": None}, "give --output FILE"),
        ({"json": Path()}, "is a directory"),
        ({"picture": Path("a.gif")}, "must end in"),
    ],
)
def test_mistakes_are_named_before_any_time_is_spent(
    options: TuneOptions, changes: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "write_texts", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(UserError, match=message):
        tune(TuneOptions(**vars(options) | changes))


def test_a_file_that_is_no_tuning_is_not_written_over(options: TuneOptions) -> None:
    assert options.output is not None
    options.output.parent.mkdir()
    options.output.write_text("{}")
    with pytest.raises(UserError, match="holds no tuning"):
        tune(options)
    assert options.output.read_text() == "{}"


def test_the_file_lies_with_the_draft_unless_it_cannot(
    options: TuneOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = TuneOptions(draft=str(tmp_path))
    assert beside.tuning_file == tmp_path / "tuning.json"
    monkeypatch.setattr("clover.tune.options.os.access", lambda *_: False)
    with pytest.raises(UserError, match="cannot be written; give --output FILE"):
        _ = beside.tuning_file
