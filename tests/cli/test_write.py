import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clover import write


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"turns": [f"the cat {i}?"]}) + "\n" for i in range(6)))
    return path


@pytest.fixture
def run(run_clover: Callable, tiny_target: Path, tmp_path: Path) -> Callable:
    """Return a function that writes into out.jsonl, with more options."""

    def call(*arguments: object) -> tuple[int, str, str]:
        flags = [
            "--target",
            tiny_target,
            "--output",
            tmp_path / "out.jsonl",
            "--max-length",
            60,
            "--dtype",
            "float32",
        ]
        return run_clover("write", *flags, *arguments)

    return call


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_target_answers_prompts_and_a_draft_learns_from_them(
    run: Callable, run_clover: Callable, prompts: Path, tiny_target: Path, tmp_path: Path
) -> None:
    code, out, err = run("--prompts", prompts, "--max-new-tokens", 7)
    written = lines(tmp_path / "out.jsonl")
    assert (code, len(written)) == (0, 6)
    tokens = sum(line["clover"]["tokens"] for line in written)
    assert out == f"{tmp_path / 'out.jsonl'}: 6 texts, {tokens} tokens that the target wrote\n"
    assert all(0 < line["clover"]["tokens"] <= 7 for line in written)
    assert (
        f"clover train --target {tiny_target} --dtype float32 --data {tmp_path / 'out.jsonl'} --output DIR"
        in err
    )
    draft = ["--output", tmp_path / "draft", "--max-length", 60, "--max-steps", 2]
    assert run_clover("train", "--target", tiny_target, "--data", tmp_path / "out.jsonl", *draft).code == 0


def test_what_is_known_of_the_texts_stands_in_a_file_with_them(
    run: Callable, prompts: Path, tmp_path: Path
) -> None:
    prompts.write_text(prompts.read_text() + json.dumps({"turns": ["xyz" * 90]}) + "\n")
    code, _, err = run("--prompts", prompts, "--temperature", 0.5)
    origin = json.loads((tmp_path / "out.origin.json").read_text())
    assert (code, origin["texts"]) == (0, 6)
    assert "left out 1 of 7 texts read; the first: " in err and "line 7: " in err and "at most 58 fit" in err
    assert list(origin["left_out"]) == ["text 7"] and origin["unread"] == []
    command = origin["provenance"]["command"]
    assert command.startswith("clover write --target") and command.endswith(
        f"--prompts {prompts} --max-length 60 --temperature 0.5"
    )


def test_records_that_cannot_be_read_are_counted_in_the_end(
    run: Callable, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.data.texts._CHECKED", 2)  # the others are looked at while the target writes
    whole = prompts.read_text().splitlines()
    prompts.write_text("\n".join([whole[0], "{broken", *whole[1:], "{broken", "{broken"]) + "\n")
    code, _, err = run("--prompts", prompts)
    first, last = (line for line in err.splitlines() if "left out" in line)
    assert code == 0 and first.startswith("left out 1 of 2 texts read; the first: ")
    assert last.startswith("left out 3 of 9 texts read; the first: ") and "line 2" in last
    assert len(json.loads((tmp_path / "out.origin.json").read_text())["unread"]) == 3


def test_an_interrupted_command_is_continued_by_the_same(
    run: Callable, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = write.append_lines, iter(range(3))

    def interrupted(*arguments: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        append(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("clover.write.append_lines", interrupted)
        assert run("--prompts", prompts, "--batch-size", 2).code == 130
    begun = (tmp_path / "out.jsonl").read_text()
    assert begun.count("\n") == 3
    code, _, err = run("--prompts", prompts, "--batch-size", 2)
    assert code == 0 and "continues the texts in" in err
    assert (tmp_path / "out.jsonl").read_text().startswith(begun)
    assert sorted(line["clover"]["index"] for line in lines(tmp_path / "out.jsonl")) == list(range(6))
    code, _, err = run("--prompts", prompts, "--seed", 4)
    assert (code, err.count("\n")) == (2, 1)
    assert "another target, other prompts or other options; choose another file" in err


def test_some_of_the_prompts_and_some_of_the_time(run: Callable, prompts: Path, tmp_path: Path) -> None:
    assert run("--prompts", prompts, "--texts", 2).code == 0
    assert len(lines(tmp_path / "out.jsonl")) == 2
    assert run("--prompts", prompts, "--max-minutes", 0).code == 0
    assert len(lines(tmp_path / "out.jsonl")) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --prompts FILE, or --texts N to let a chat model write them, too"),
        (["--texts", 2, "--output", "x.txt"], "must end with .jsonl"),
    ],
)
def test_mistakes_are_one_line(run: Callable, flags: list[object], message: str) -> None:
    code, out, err = run(*flags)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("clover: error: ") and message in err


def test_answers_of_an_earlier_version_are_named(
    run_clover: Callable, tiny_target: Path, prompts: Path, tmp_path: Path
) -> None:
    old = tmp_path / "draft.0123456789ab.regenerated.jsonl"
    old.write_text(json.dumps({"index": 0, "tokens": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]}) + "\n")
    flags = ["train", "--target", tiny_target, "--data", prompts, "--regenerate", "--resume"]
    code, _, err = run_clover(*flags, "--output", tmp_path / "draft")
    assert code == 2 and f"{old} is of an earlier version; begin again, with --data {old}" in err
