from collections.abc import Callable
from pathlib import Path

import pytest

from clover.measure.options import BenchOptions

TINY = ["--max-new-tokens", "4", "--max-prompts", "1", "--rounds", "1"]


def test_bench_passes_its_options(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BenchOptions] = []
    monkeypatch.setattr("clover.measure.bench.run_bench", seen.append)
    flags = ["--draft", "d", "--prompts", "p.txt", *("--batch-size", "1"), *("--batch-size", "4") * 2]
    flags += ["--temperature", "0.5", "--tree", "chain:2", "--assistant", "a", "--rounds", "3"]
    flags += ["--max-new-tokens", "9", "--max-prompts", "2", "--max-minutes", "3", "--no-reference"]
    flags += ["--dtype", "bf16"]
    flags += ["--device", "cpu", "--trust-remote-code", "--json", "x.jsonl", "--picture", "x.svg"]
    assert run_clover("bench", "t", *flags).code == 0
    assert run_clover("bench", "--target", "t").code == 0
    assert seen == [
        BenchOptions(
            target="t", draft="d", prompts=Path("p.txt"), batch_sizes=(1, 4), temperatures=(0.5,),
            trees=("chain:2",), assistant="a", rounds=3, max_new_tokens=9, max_prompts=2, max_minutes=3.0,
            no_reference=True, dtype="bf16", device="cpu", trust_remote_code=True,
            json=Path("x.jsonl"), picture=Path("x.svg"),
        ),
        BenchOptions(target="t"),
    ]  # fmt: skip


def test_the_embedded_pair(run_clover: Callable, tmp_path: Path) -> None:
    done = run_clover("bench", *TINY, "--json", tmp_path / "found.jsonl")
    assert done.code == 0
    for words in ("speed-up", "own tree", "prompt lookup", "ceilings", "wrote "):
        assert words in done.out
    lines = (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()
    assert all('"identical": true' in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-directory/target"], "no-such-directory/target cannot be loaded"),
        (["a", "--target", "b"], "the target is named twice"),
        (["--batch-size", "0"], "--batch-size"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--rounds", "0"], "--rounds"),
        (["--picture", "a.gif"], "a.gif must end in"),
        (["--prompts", "missing.txt"], "cannot read missing.txt"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(
    run_clover: Callable, arguments: list[str], message: str
) -> None:
    done = run_clover("bench", *TINY, *arguments)
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1
