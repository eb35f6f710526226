import json
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = ["--max-new-tokens", "4", "--max-prompts", "1", "--rounds", "1"]


def test_the_embedded_pair(run_clover: Callable, tmp_path: Path) -> None:
    done = run_clover("bench", *TINY, "--json", tmp_path / "found.jsonl")
    assert done.code == 0
    for words in ("speed-up", "own tree", "prompt lookup", "ceilings", "wrote "):
        assert words in done.out
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {one["identical"] for one in lines} == {True}
    command = lines[0]["provenance"]["command"]  # whatever is not at its default
    assert command.startswith("clover bench --rounds 1 --max-new-tokens 4 --max-prompts 1 --json ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-directory/target"], "no-such-directory/target cannot be loaded"),
        (["a", "--target", "b"], "the target is named twice"),
        (["--batch-size", "0"], "--batch-size"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--rounds", "0"], "--rounds"),
        (["--prompts", "missing.txt"], "cannot read missing.txt"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(
    run_clover: Callable, arguments: list[str], message: str
) -> None:
    done = run_clover("bench", *TINY, *arguments)
    assert done.code == 2 and message in done.err.splitlines()[-1]
