from collections.abc import Callable
from pathlib import Path

import pytest

from clover.measure.options import DemoOptions


def test_demo_passes_its_options(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DemoOptions] = []
    monkeypatch.setattr("clover.measure.demo.run_demo", lambda options: seen.append(options) or (None, False))
    flags = ["--target", "t", "--draft", "d", "--tree", "chain:2", "--dtype", "float32", "--device", "cpu"]
    flags += ["--prompts", "p.txt", "--max-new-tokens", "9", "--temperature", "0.5", "--picture", "x.svg"]
    assert run_clover("demo", *flags, "--json", "x.json", "--quiet").code == 0
    assert run_clover("demo").code == 0
    assert seen == [
        DemoOptions(
            target="t", drafts=("d",), tree="chain:2", dtype="float32", device="cpu", prompts=Path("p.txt"),
            max_new_tokens=9, temperature=0.5, picture=Path("x.svg"), json=Path("x.json"), quiet=True,
        ),
        DemoOptions(),
    ]  # fmt: skip


def test_demo_that_finds_a_defect_fails(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clover.measure.demo.run_demo", lambda _: (None, True))
    assert run_clover("demo").code == 1
