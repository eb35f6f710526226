"""The command from end to end."""

import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from clover import assets
from clover.drafts.hydra import HydraDraft
from clover.measure.demo import run
from clover.measure.demo.rounds import Round, TextDifference, decode_round
from clover.measure.demo.run import run_demo
from clover.measure.options import DemoOptions
from clover.options import command_line
from clover.target import TargetModel, signs_fingerprint
from tests.measure.demo.conftest import PROMPTS, Models


@pytest.fixture
def options(directories: Models, tmp_path: Path) -> DemoOptions:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"prompts": PROMPTS}))
    target, draft = map(str, directories)
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
    assert done.err.count("prompt 3, ") == 2
    assert [line for line in done.out.splitlines() if line.startswith("wrote ")] == [
        f"wrote {path}" for path in (found, options.picture)
    ]
    assert options.picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(found.read_text())
    assert (report["provenance"]["device"], report["provenance"]["dtype"]) == ("cpu", "float32")
    assert (report["target"], report["prompts"], report["differences"]) == (options.target, 3, [])
    names = ("plain", "transformers", "recall", "hydra")
    rows = [(one["method"], one["temperature"], one["identical"]) for one in report["methods"]]
    sampled = [(name, 0.8, None if name == "transformers" else True) for name in names]
    assert rows == [*((name, 0.0, True) for name in names), *sampled]
    assert [one["label"] for one in report["methods"]][:2] == ["plain decoding", "transformers' generate"]


def test_quiet_greedy_and_another_tree(options: DemoOptions, run_clover: Callable) -> None:
    flags = ("--quiet", "--temperature", 0, "--tree", "chain:3", "--max-new-tokens", 4)
    done = run_clover(*arguments(options, *flags))
    assert (done.code, done.err) == (0, "")


def test_a_draft_that_names_no_tree_shows_a_chain_on_a_cpu(
    options: DemoOptions, directories: Models, tmp_path: Path
) -> None:
    draft = tmp_path / "with a tree"
    shutil.copytree(directories.draft, draft)
    named = json.loads((draft / "config.json").read_text()) | {"tree": [[0], [0, 0], [1]]}
    (draft / "config.json").write_text(json.dumps(named))
    for place, tree, nodes in ((directories.draft, "chain:4", 5), (draft, None, 4)):
        shown = run._Demo(replace(options, drafts=(str(place),))).methods[-1]
        assert (shown.tree, shown.nodes) == (tree, nodes)


@pytest.mark.parametrize(("limit", "prompts", "tokens"), [(1e6, 3, 96), (0.0, 1, 24)])
def test_what_would_not_end_in_time_is_left_out(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, limit: float, prompts: int, tokens: int
) -> None:
    monkeypatch.setattr(run, "TIME_LIMIT", limit)
    report, _ = run_demo(options, Console(file=io.StringIO()), Console(file=io.StringIO()))
    assert isinstance(report.data, dict)
    assert (report.data["max_new_tokens"], report.data["prompts"]) == (tokens, prompts)
    assert all((note in dict(report.notes)) == (prompts == 1) for note in ("left out", "shortened"))


def test_a_slow_target_writes_as_many_tokens_as_some_prompts_have_time_for(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, clock = run._Demo(replace(options, temperature=0.0)), [0.0]

    def one_second(*_: object) -> None:
        clock[0] += 1.0

    methods = [replace(one, decode=one_second) for one in demo.methods]
    monkeypatch.setattr(demo, "methods", methods)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    demo.shorten(deadline=3.0 + 3 * 3.0 / 16 * 40)  # of three methods, on three prompts
    assert demo.tokens == 40


@pytest.mark.parametrize(("limit", "shares"), [(2.5, [0.4, 0.8]), (1e6, [1 / 3, 2 / 3, 1])])
def test_the_bar_goes_by_the_time_where_that_ends_before_the_prompts(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, limit: float, shares: list[float]
) -> None:
    def one_second(*given: Any) -> Round:
        clock[0] += 1.0
        return decode_round(*given)

    clock, seen = [0.0], list[float]()
    monkeypatch.setattr(run, "TIME_LIMIT", limit)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(run, "decode_round", one_second)
    monkeypatch.setattr(run.Progress, "reach", lambda self, done: seen.append(done))
    quiet = Console(file=io.StringIO())
    run_demo(replace(options, temperature=0.0), quiet, quiet)
    assert seen == pytest.approx([0.0, *shares])


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
    assert done.code == 2
    assert done.err.startswith("clover: error: ") and done.err.count("\n") == 1
    assert message in done.err
    assert not options.picture.exists()


def test_interruption(options: DemoOptions, run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clover.measure.interleaved.TimedDecoding.advance", interrupted)
    done = run_clover(*arguments(options))
    assert done.code == 130
    assert done.err.strip() == "clover: error: interrupted"
    assert not options.picture.exists()


def test_a_defect_is_an_exit_code(
    options: DemoOptions, run_clover: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = TextDifference("recall", 1, 3, 2.0, defect=True)
    monkeypatch.setattr(run, "find_differences", lambda *_: [found])
    done = run_clover(*arguments(options, "--max-new-tokens", 2, "--quiet"))
    assert done.code == 1


def test_the_drafts_of_smollm2_are_called_by_their_names(
    options: DemoOptions, directories: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny target that the package takes for SmolLM2; its draft counts as the package's own."""
    monkeypatch.setattr(assets, "_SMOLLM2_SIGNS", signs_fingerprint(TargetModel.load(directories.target)))
    monkeypatch.setattr(assets, "SMOLLM2_DRAFTS", {"smollm2/recall": directories.draft})
    shown = replace(options, drafts=(), temperature=0.0, max_new_tokens=2, quiet=True)
    report, _ = run_demo(shown, Console(file=io.StringIO()))
    assert ("drafts", "smollm2/recall") in report.facts
