"""Methods of the benchmark, and the whole of it on a tiny pair."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clover.errors import UserError
from clover.measure.bench import run_bench
from clover.measure.options import BenchOptions


@pytest.fixture(scope="module")
def tiny(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    for place in tiny_pair:
        shutil.copytree(place, folder / place.name)
    (folder / "prompts.txt").write_text("one two\nthree four five\nsix\n")
    return folder


def options(folder: Path, **changes: Any) -> BenchOptions:
    return BenchOptions(
        target=str(folder / "target"), draft=str(folder / "draft"), prompts=folder / "prompts.txt",
        dtype="float64", device="cpu", rounds=2, max_new_tokens=8, json=folder / "found.jsonl",
        **changes,
    )  # fmt: skip


def ran(what: BenchOptions) -> tuple[list[dict[str, Any]], str, str]:
    out, errors = io.StringIO(), io.StringIO()
    run_bench(what, Console(file=out, width=120), Console(file=errors))
    assert what.json is not None
    return (
        [json.loads(line) for line in what.json.read_text(encoding="utf-8").splitlines()],
        out.getvalue(),
        errors.getvalue(),
    )


@pytest.mark.long
def test_every_method_at_every_setting(tiny: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    chosen = options(
        tiny, batch_sizes=(1, 2), temperatures=(0.0, 1.0), trees=("chain:2", "drawn:chain:2"),
        assistant=str(tiny / "target"), picture=picture,
    )  # fmt: skip
    found, out, _ = ran(chosen)
    ours = ["plain", "auto", "own", "lookup", "chain:2", "drawn:chain:2", "transformers"]
    assert [one["method"] for one in found] == [*ours, "prompt lookup", "assisted"] * 2 + ours * 2
    assert [(one["batch_size"], one["temperature"]) for one in found[::9]][:2] == [(1, 0.0), (1, 1.0)]
    for one in found:
        drawn = one["method"].startswith("drawn") and one["temperature"] > 0
        theirs = one["method"] in ("transformers", "prompt lookup", "assisted") and one["temperature"] > 0
        assert one["identical"] is (None if drawn or theirs else True), one
        assert one["peak_memory_bytes"] is None and one["tokens_per_second"] > 0
        assert (one["ideal_share"] is None) == (one["method"] not in (*ours[1:3], *ours[4:6]))
        assert (one["step_milliseconds"] is None) == (one["method"] not in ours[:6])
        assert one["prompts"] == 3 and one["texts"] == 3 + (one["batch_size"] == 2)  # batches are filled up
    assert {one["speedup"] for one in found if one["method"] == "plain"} == {1.0}
    assert "drafted in " in out and "--batch-size 2" in found[0]["provenance"]["command"]
    assert out.count("no batches: ") == 2 and picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft": None}, "a target was given but no draft"),
        ({"trees": ("chain:x",), "target": "none"}, "chain"),  # before the target is loaded
        ({"prompts": Path("none.txt"), "target": "none"}, "cannot read none.txt"),
        ({"trees": ("chain:40",)}, "40"),
        ({"assistant": "no-such-directory/model"}, "the assistant no-such-directory/model cannot be loaded"),
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"picture": Path("a.gif")}, "must end in"),
    ],
)
def test_errors_come_before_the_measuring(tiny: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ran(replace(options(tiny), **changes))
