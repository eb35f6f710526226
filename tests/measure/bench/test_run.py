from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clover import assets
from clover.errors import UserError
from clover.measure.bench.run import load_assistant, run_bench
from clover.measure.options import BenchOptions
from clover.target import TargetModel, signs_fingerprint
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


def test_every_method_at_every_setting(tiny: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    chosen = options(
        tiny, batch_sizes=(1, 2), temperatures=(0.0, 1.0), trees=("chain:2", "drawn:chain:2"),
        assistant=str(tiny / "target"), picture=picture,
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
        assert (one["step_milliseconds"] is None) == (one["method"] not in ours[:5])
        assert one["prompts"] == 3 and one["texts"] == 3 + (one["batch_size"] == 2)  # batches are filled up
    assert {one["speedup"] for one in found if one["method"] == "plain"} == {1.0}
    assert out.count("not able") == 2 and picture.stat().st_size > 1000


def test_time_left_is_shown(tiny: Path) -> None:
    terminal = io.StringIO()
    chosen = options(tiny, no_reference=True)
    run_bench(chosen, Console(file=io.StringIO()), Console(file=terminal, force_terminal=True, width=120))
    assert "batch 1, temperature 0" in terminal.getvalue() and "left" in terminal.getvalue()


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


def test_an_assistant_with_broken_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny / "target", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="the assistant .*broken cannot be loaded"):
        load_assistant(str(tmp_path / "broken"), TargetModel.load(tiny / "target"), trust_remote_code=False)


def test_the_command_is_named(tiny: Path) -> None:
    found, *_ = ran(options(tiny, no_reference=True))
    assert found[0]["provenance"]["threads"] > 0
    assert "--no-reference" in found[0]["provenance"]["command"]


def test_the_draft_of_smollm2_is_called_by_its_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny target that the package takes for SmolLM2; its draft counts as the package's own."""
    monkeypatch.setattr(assets, "_SMOLLM2_SIGNS", signs_fingerprint(TargetModel.load(tiny / "target")))
    monkeypatch.setattr(assets, "SMOLLM2_DRAFTS", {"smollm2/recall": tiny / "draft"})
    found, *_ = ran(replace(options(tiny, no_reference=True), draft=None))
    assert {one["draft"] for one in found} == {"smollm2/recall"}
