"""The demo from end to end."""

import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from clover.drafts.hydra import HydraDraft
from clover.errors import UserError
from clover.measure.demo import draft_names, drafted_methods, run_demo
from clover.measure.options import DemoOptions
from clover.measure.session import LoadedDraft, Session
from clover.measure.speed import TextDifference
from clover.options import command_line
from clover.target import TargetModel

PROMPTS = ["def area(self):", "import os", "class Tree:"]


@pytest.fixture
def options(tiny_pair: tuple[Path, Path], tmp_path: Path) -> DemoOptions:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"prompts": PROMPTS}))
    target, draft = map(str, tiny_pair)
    return DemoOptions(target=target, drafts=(draft,), prompts=prompts, picture=tmp_path / "out" / "demo.png")


def arguments(options: DemoOptions, *more: object) -> list[object]:
    return [*command_line("demo", options).split()[1:], *more]


def test_the_command_shows_and_writes_everything(
    options: DemoOptions, run_clover: Callable, tmp_path: Path
) -> None:
    found, hydra = tmp_path / "demo.json", tmp_path / "hydra"
    HydraDraft.from_target(TargetModel.load(options.target or "")).save_pretrained(hydra)
    done = run_clover(*arguments(options, "--max-new-tokens", 8, "--json", found, "--draft", hydra))
    assert done.code == 0
    assert done.err.count("2 texts, tokens/s: plain decoding ") == 2
    assert [line for line in done.out.splitlines() if line.startswith("wrote ")] == [
        f"wrote {path}" for path in (found, options.picture)
    ]
    assert options.picture.read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert {(one["provenance"]["dtype"], one["target"], one["prompts"]) for one in lines} == {
        ("float32", options.target, 3)
    }
    names = ("plain", "transformers", "recall", "hydra")
    rows = [(one["method"], one["temperature"], one["identical"]) for one in lines]
    sampled = [(name, 0.8, None if name == "transformers" else True) for name in names]
    assert rows == [*((name, 0.0, True) for name in names), *sampled]
    assert [one["label"] for one in lines][:2] == ["plain decoding", "transformers' generate"]


def test_quiet_greedy_and_another_tree(options: DemoOptions, run_clover: Callable) -> None:
    flags = ("--quiet", "--temperature", 0, "--tree", "chain:3", "--max-new-tokens", 4)
    done = run_clover(*arguments(options, *flags))
    assert (done.code, done.err) == (0, "")


def test_a_draft_that_names_no_tree_shows_a_chain_on_a_cpu(
    options: DemoOptions, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    draft = tmp_path / "with a tree"
    shutil.copytree(tiny_pair[1], draft)
    named = json.loads((draft / "config.json").read_text()) | {"tree": [[0], [0, 0], [1]]}
    (draft / "config.json").write_text(json.dumps(named))
    shown = replace(options, drafts=(str(tiny_pair[1]), str(draft)))
    session = Session.load(shown, shown.drafts, options.prompts, 4)
    chain, own = drafted_methods(session, shown)
    assert chain.engine is not None and own.engine is not None
    assert (chain.engine.tree.name, chain.nodes, own.engine.tree.name, own.nodes) == ("chain:4", 5, "own", 4)


def test_drafts_are_called_by_system_directory_or_path(session: Session) -> None:
    def names(*places: str) -> list[str]:
        return draft_names([LoadedDraft(place, place, session.draft.model) for place in places])

    assert names("a/x") == ["recall"]
    assert names("a/x", "b/y") == ["x", "y"]
    assert names("a/x", "b/x", "plain") == ["a/x", "b/x", "plain"]
    with pytest.raises(UserError, match="two of the drafts are the same"):
        names("a/x", "a/x")


def test_a_slow_target_shows_fewer_tokens_of_one_prompt(options: DemoOptions) -> None:
    report, _ = run_demo(
        replace(options, max_minutes=0.0), Console(file=io.StringIO()), Console(file=io.StringIO())
    )
    assert {(one["max_new_tokens"], one["prompts"]) for one in report.data} == {(24, 1)}
    assert {"shortened", "ended", "left out"} <= dict(report.notes).keys()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prompts", "missing.json"], "cannot read missing.json"),
        (["--picture", "demo.gif"], "must end in .png"),
        (["--tree", "chain:17"], "the tree is 17 deep"),
        (["--tree", "drawn:chain:2"], "give another tree or --temperature 0"),
        (["--temperature", "-1"], "temperature"),
        (["--max-new-tokens", "0"], "max-new-tokens"),
        (["--target", "./nowhere"], "./nowhere"),
    ],
)
def test_bad_input_is_one_line(
    options: DemoOptions, run_clover: Callable, more: Sequence[str], message: str
) -> None:
    done = run_clover(*arguments(options, *more))
    *_, last = done.err.splitlines()  # loading is named first where it lasts
    assert done.code == 2 and last.startswith("clover: error: ") and message in last
    assert not options.picture.exists()


def test_a_defect_is_an_exit_code(
    options: DemoOptions, run_clover: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = TextDifference("recall: a defect", defect=True)
    monkeypatch.setattr("clover.measure.comparison.find_differences", lambda *_: [found])
    done = run_clover(*arguments(options, "--max-new-tokens", 2, "--quiet"))
    assert done.code == 1
