from collections.abc import Callable
from pathlib import Path

import pytest

from clover.measure.options import EvaluateOptions

TINY = ["--max-new-tokens", "6", "--max-prompts", "2", "--temperature", "0"]


def test_evaluate_passes_its_options(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EvaluateOptions] = []
    monkeypatch.setattr("clover.measure.evaluate.run_evaluate", seen.append)
    flags = ["--target", "t", "--draft", "d", "--tree", "chain:2", "--tree", "clover2", "--tree", "chain:2"]
    flags += ["--dtype", "float32", "--device", "cpu", "--temperature", "0.5", "--max-new-tokens", "9"]
    flags += ["--max-prompts", "3", "--batch-size", "2", "--seed", "4"]
    flags += ["--json", "x.json"]
    assert run_clover("evaluate", "a.jsonl", "b.txt", *flags).code == 0
    assert run_clover("evaluate").code == 0
    assert seen == [
        EvaluateOptions(
            files=("a.jsonl", "b.txt"), target="t", draft="d", trees=("chain:2", "clover2"),
            temperatures=(0.5,), max_new_tokens=9, max_prompts=3, batch_size=2, dtype="float32", device="cpu",
            seed=4, json=Path("x.json"),
        ),
        EvaluateOptions(),
    ]  # fmt: skip


def test_the_embedded_pair_on_development_prompts(run_clover: Callable, tmp_path: Path) -> None:
    done = run_clover("evaluate", *TINY, "--details", "--json", str(tmp_path / "found.json"))
    assert done.code == 0
    for words in ("Accuracy at each depth", "Acceptance", "Where the draft is weak", "wrote "):
        assert words in done.out
    assert '"group": "development"' in (tmp_path / "found.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "cannot read missing.jsonl"),
        (["--max-prompts", "0"], "--max-prompts"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--tree", "chain:x"], "chain"),
        (["--tree", "lookup", "--no-copies"], "--tree lookup copies from the text"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(
    run_clover: Callable, arguments: list[str], message: str
) -> None:
    done = run_clover("evaluate", *TINY, *arguments)
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1
