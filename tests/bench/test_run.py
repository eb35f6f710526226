from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clover.bench.memory import resident_peaks
from clover.bench.options import BenchOptions
from clover.bench.run import run_bench
from clover.errors import UserError
from tests.tiny import save_tiny_pair

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    save_tiny_pair(folder)
    (folder / "prompts.txt").write_text("one two\nthree four five\nsix\n")
    return folder


def options(folder: Path, **changes: Any) -> BenchOptions:
    return BenchOptions(
        target=str(folder / "target"), draft=str(folder / "draft"), prompts=folder / "prompts.txt",
        dtype="float64", device="cpu", rounds=2, max_new_tokens=8, no_memory=True, json=folder / "found.jsonl",
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


def test_every_method_at_every_setting(tiny: Path, tmp_path: Path) -> None:
    picture, page = tmp_path / "p.png", tmp_path / "p.html"
    chosen = options(
        tiny, batch_sizes=(1, 2), temperatures=(0.0, 1.0), trees=("chain:2", "drawn:chain:2"),
        assistant=str(tiny / "target"), picture=picture,
        html=page,
    )  # fmt: skip
    found, out, _ = ran(chosen)
    ours = ["plain", "auto", "own tree", "chain:2", "drawn:chain:2", "transformers"]
    assert [one["method"] for one in found] == [*ours, "prompt lookup", "assisted"] * 2 + ours * 2
    assert [(one["batch_size"], one["temperature"]) for one in found[::8]][:2] == [(1, 0.0), (1, 1.0)]
    for one in found:
        drawn = one["method"].startswith("drawn") and one["temperature"] > 0
        theirs = one["method"] in ("transformers", "prompt lookup", "assisted") and one["temperature"] > 0
        assert one["identical"] is (None if drawn or theirs else True), one
        assert one["peak_memory_bytes"] is None and one["tokens_per_second"] > 0
        assert (one["ideal_share"] is None) == (one["method"] not in ours[1:5])
        assert (one["draft_share"] is None) == (one["method"] not in ours[:5])
        assert one["prompts"] == 3 and one["texts"] == 3 + (one["batch_size"] == 2)  # batches are filled up
    assert {one["speedup"] for one in found if one["method"] == "plain"} == {1.0}
    assert (
        out.count("not able") == 2 and page.read_text().count("<svg") == 1 and picture.stat().st_size > 1000
    )


def test_time_left_is_shown(tiny: Path) -> None:
    terminal = io.StringIO()
    chosen = options(tiny, no_reference=True)
    run_bench(chosen, Console(file=io.StringIO()), Console(file=terminal, force_terminal=True, width=120))
    assert "batch 1, temperature 0" in terminal.getvalue() and "left" in terminal.getvalue()


def test_memory_grows_with_the_batch_and_holds_the_weights(tiny: Path) -> None:
    chosen = replace(options(tiny), dtype="float32", max_new_tokens=100, json=None)
    peaks = resident_peaks("own tree", chosen, (1, 64))
    assert set(peaks) == {1, 64}
    cache = 64 * 103 * 2 * 2 * 32 * 4  # rows, tokens, layers, keys and values, width, bytes
    assert peaks[64] - peaks[1] > cache / 2
    with pytest.raises(UserError, match="peak memory of own tree could not be measured: .*none"):
        resident_peaks("own tree", replace(chosen, target=str(tiny / "none")), (1,))


def test_the_context_is_measured_on_a_model_of_its_own(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clover.bench.run.CONTEXTS", (30, 60, 90))
    found, out, _ = ran(options(tiny, context=True, picture=tiny / "c.svg"))
    assert [one["method"] for one in found] == ["plain", "own tree"]
    for one in found:
        assert one["contexts"] == [30, 60, 90] and {"slope", "intercept", "deviation"} < set(one)
    assert "random weights" in out and (tiny / "c.svg").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft": None}, "a target was given but no draft"),
        ({"trees": ("chain:x",)}, "chain"),
        ({"trees": ("chain:40",)}, "40"),
        ({"assistant": "no-such-directory/model"}, "the assistant no-such-directory/model cannot be loaded"),
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"picture": Path("a.gif")}, "must end in"),
    ],
)
def test_errors_come_before_the_measuring(tiny: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ran(replace(options(tiny), **changes))


def test_the_command_is_named(tiny: Path) -> None:
    found, *_ = ran(options(tiny, no_reference=True))
    assert found[0]["provenance"]["threads"] > 0
    assert "--no-reference" in found[0]["provenance"]["command"]
