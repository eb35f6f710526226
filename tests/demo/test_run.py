"""The command from end to end."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from clover.demo import DemoOptions, Report, run, run_demo
from clover.demo.measure import Bench
from clover.demo.report import Difference
from tests.demo.conftest import PROMPTS, Models


@pytest.fixture
def options(directories: Models, tmp_path: Path) -> DemoOptions:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"prompts": PROMPTS}))
    target, draft = map(str, directories)
    return DemoOptions(target=target, draft=draft, prompts=prompts, picture=tmp_path / "out" / "demo.png")


def arguments(options: DemoOptions, *more: object) -> list[object]:
    return [*options.command.split()[1:], *more]


def run_quietly(options: DemoOptions) -> Report:
    return run_demo(options, Console(file=io.StringIO(), width=100))


def test_the_command_shows_and_writes_everything(
    options: DemoOptions, run_clover: Callable, tmp_path: Path
) -> None:
    figures = tmp_path / "demo.json"
    done = run_clover(*arguments(options, "--max-new-tokens", 8, "--json", figures))
    assert (done.code, done.err) == (0, "")
    assert "1/3 greedy" in done.out
    assert "3/3 sampled (0.8)" in done.out
    assert "identical output:    yes, 3 of 3 greedy texts and 3 of 3 sampled (0.8) texts" in done.out
    assert f"wrote {options.picture}" in done.out
    assert options.picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(figures.read_text())
    assert (report["device"], report["dtype"], report["target"]) == ("cpu", "float32", options.target)
    rows = [(m["name"], m["temperature"], m["identical"]) for m in report["methods"]]
    greedy = [(name, 0.0, True) for name in ("transformers", "plain", "clover2")]
    assert rows == [*greedy, ("plain", 0.8, True), ("clover2", 0.8, True)]
    assert report["command"].endswith(f"--max-new-tokens 8 --picture {options.picture} --json {figures}")
    assert set(report["versions"]) == {"clover", "torch", "transformers", "python"}


def test_quiet_greedy_and_another_tree(options: DemoOptions, run_clover: Callable) -> None:
    done = run_clover(
        *arguments(options, "--quiet", "--temperature", 0, "--tree", "chain:3", "--max-new-tokens", 4)
    )
    assert done.code == 0
    assert "1/3" not in done.out
    assert "sampled" not in done.out
    assert "tree of 3 nodes" in done.out


def test_tokens_are_chosen_to_fit_the_time(options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "seconds_per_token", lambda self: 1.5)
    assert run_quietly(options).max_new_tokens == pytest.approx(0.9 * run.TIME_LIMIT / (3 * 1.5), abs=4)
    monkeypatch.setattr(run, "TIME_LIMIT", 0.0)
    report = run_quietly(options)
    assert (report.max_new_tokens, report.prompts, report.out_of_time) == (run.MIN_TOKENS, 1, 2)


def test_a_number_of_tokens_lifts_the_time_limit(
    options: DemoOptions, monkeypatch: pytest.MonkeyPatch, run_clover: Callable
) -> None:
    monkeypatch.setattr(run, "TIME_LIMIT", 0.0)
    done = run_clover(*arguments(options, "--max-new-tokens", 2, "--quiet"))
    assert "3 prompts, 2 new tokens each" in done.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prompts", "missing.json"], "cannot read missing.json"),
        (["--picture", "demo.gif"], "must end in .png"),
        (["--tree", "chain:17"], "the tree is 17 deep"),
        (["--tree", "drawn:chain:2"], "give another tree or --temperature 0"),
        (["--temperature", "-1"], "temperature must be 0"),
        (["--max-new-tokens", "0"], "max-new-tokens"),
        (["--target", "./nowhere"], "./nowhere"),
    ],
)
def test_bad_input_is_one_line(
    options: DemoOptions, run_clover: Callable, more: list[str], message: str
) -> None:
    done = run_clover(*arguments(options, *more))
    assert done.code == 2
    assert done.err.startswith("clover: error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert not options.picture.exists()


def test_interruption(options: DemoOptions, run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clover.demo.measure.Decoding.advance", interrupted)
    done = run_clover(*arguments(options))
    assert done.code == 130
    assert done.err.strip() == "clover: error: interrupted"
    assert not options.picture.exists()


def test_a_defect_is_an_exit_code(
    options: DemoOptions, run_clover: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_differences", lambda *_: [Difference(1, 3, 2.0)])
    done = run_clover(*arguments(options, "--max-new-tokens", 2, "--quiet"))
    assert done.code == 1
    assert "it is a defect" in done.out
