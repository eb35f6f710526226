"""The stages of `benchmarks/gpu_lab.py`, at sizes for a test."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import gpu_lab
from benchmarks.lab import profiling, shapes
from benchmarks.lab.sizes import FULL, SMALL, Shape

pytestmark = pytest.mark.long

TINY = replace(
    SMALL,
    shapes=(Shape("flat", 2, 32, 48, 2, 1, 64, tied=True), Shape("deep", 6, 32, 48, 2, 2, 64)),
    draft_vocabularies=(None, 16),
    context=8,
    steps=4,
)
ORIGIN = {"date", "device", "machine", "dtype", "command", "revision", "versions"}


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_shapes_are_timed_scaled_and_held_against_the_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lab, "SMALL", TINY)
    assert gpu_lab.main(["all", "--small", "--work", str(tmp_path)]) == 0
    results = tmp_path / "results"
    lines = read_lines(results / "shapes.jsonl")
    assert [(line["shape"], line["draft_vocabulary"]) for line in lines] == [
        ("flat", 64), ("flat", 16), ("deep", 64), ("deep", 16),
    ]  # fmt: skip
    for line in lines:
        assert set(line["origin"]) == ORIGIN
        assert line["layers_scaled"] == (line["shape"] == "deep") and line["nodes"] == 26
        assert set(line["bars"]) == set(shapes.BARS)
        ratio = line["milliseconds"]["plain"] / line["least_plain_milliseconds"]
        assert line["bars"]["plain_over_bandwidth"]["ratio"] == pytest.approx(ratio)
    shape = TINY.shapes[1]
    deep = 4 * (6 * shape.layer_parameters + shape.head_parameters - 64 * 32)  # all but the embedding table
    assert lines[2]["weight_bytes"] == deep
    profile = (results / "profile-flat.txt").read_text()
    assert "revision" in profile.splitlines()[0] and "== speculative decoding" in profile
    before = {file: file.read_bytes() for file in results.iterdir()}
    assert gpu_lab.main(["all", "--small", "--work", str(tmp_path)]) == 0
    assert before == {file: file.read_bytes() for file in results.iterdir()}, "something was done again"


def test_a_call_without_time_ends_with_3(tmp_path: Path) -> None:
    assert gpu_lab.main(["shapes", "--small", "--work", str(tmp_path), "--minutes", "0"]) == 3
    assert not (tmp_path / "results").exists()


def test_an_unknown_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_lab.main(["shapes", "--small", "--work", str(tmp_path), "--shape", "9B"]) == 2
    assert "'9B'; known are" in capsys.readouterr().err


def test_shapes_are_those_of_the_models() -> None:
    parameters = {s.name: s.layers * s.layer_parameters + s.head_parameters for s in FULL.shapes}
    assert parameters["1B"] == 1_235_814_400  # Llama-3.2-1B
    assert parameters["8B"] == 8_030_261_248  # Llama-3.1-8B
    assert parameters["70B"] == 70_553_706_496


@pytest.mark.parametrize("module", [shapes, profiling])
def test_examples_in_docstrings(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed
