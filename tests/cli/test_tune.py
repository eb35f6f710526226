from collections.abc import Callable
from pathlib import Path

import pytest

from clover.assets import DRAFT
from clover.measure.options import TuneOptions


def test_tune_passes_its_options(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TuneOptions] = []
    monkeypatch.setattr("clover.measure.tune.run_tune", seen.append)
    flags = ["--target", "t", "--draft", "d", "--batch-size", "8", "--batch-size", "1", "--batch-size", "8"]
    flags += ["--dtype", "float32", "--device", "cpu", "--temperature", "0.5", "--max-new-tokens", "9"]
    flags += ["--max-prompts", "3", "--max-minutes", "2.5", "--seed", "4", "--output", "o.json"]
    flags += ["--json", "x.json"]
    assert run_clover("tune", "a.jsonl", "b.txt", *flags).code == 0
    assert run_clover("tune").code == 0
    assert seen == [
        TuneOptions(
            files=("a.jsonl", "b.txt"), target="t", draft="d", batch_sizes=(8, 1), temperature=0.5,
            max_new_tokens=9, max_prompts=3, max_minutes=2.5, dtype="float32", device="cpu", seed=4,
            output=Path("o.json"), json=Path("x.json"),
        ),
        TuneOptions(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "cannot read missing.jsonl"),
        (["--batch-size", "0"], "--batch-size"),
        (["--max-minutes", "-1"], "max-minutes"),
        (["--target", "t"], "target model t cannot be loaded"),
        (["--costs", "c.json"], "give --for vllm"),
        (["--output", str(DRAFT / "new" / "t.json")], "lies in a package, where nothing is written"),
        (["--output", str(DRAFT / "t.json"), "--for", "vllm"], "lies in a package"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(
    run_clover: Callable, arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = run_clover("tune", "--output", str(tmp_path / "tuning.json"), *arguments)
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [] and not (DRAFT / "new").exists()


def test_the_draft_that_was_removed_is_named(run_clover: Callable) -> None:
    done = run_clover("tune", "--draft", "lookup")
    assert done.code == 2
    assert "lookup was removed; use --tree lookup" in done.err
