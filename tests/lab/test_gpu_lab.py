"""The stages of `benchmarks/gpu_lab.py`, at sizes for a test."""

from __future__ import annotations

import doctest
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import gpu_lab
from benchmarks.lab import drafts as drafts_stage
from benchmarks.lab import profiling as profiling_stage
from benchmarks.lab import shapes as shapes_stage
from benchmarks.lab import target as target_stage
from benchmarks.lab.sizes import FULL, SMALL, Shape
from benchmarks.lab.workplace import OutOfTime, Workplace, interrupted_in_time
from clover.engine import engine as captured
from clover.errors import UserError
from experiments.recipes.corpus import Corpus, Document

pytestmark = pytest.mark.long

TINY = replace(
    SMALL,
    target=Shape("trained", 2, 32, 48, 2, 1, 300, tied=True),
    pretrain_minutes=0.01,
    pretrain_tokens=256,
    texts=8,
    text_tokens=24,
    prompt_tokens=4,
    systems=("clover2",),
    draft_steps=2,
    draft_tokens=64,
    batch_sizes=(1, 2),
    prompts=2,
    new_tokens=4,
    rounds=1,
    trees=("chain:2",),
    shapes=(Shape("flat", 2, 32, 48, 2, 1, 64, tied=True), Shape("deep", 6, 32, 48, 2, 2, 64)),
    draft_vocabularies=(None, 16),
    context=8,
    steps=4,
)
ORIGIN = {"date", "device", "machine", "dtype", "command", "revision", "versions"}


def tiny_corpus() -> Corpus:
    function = "    x = {0} + 1\n    y = x * {0}\n    print(x, y)\n    z = x - y\n    print(z)\n"
    texts = [f"import os\n\n\n\n\n\n\ndef f{i}(a):\n" + function.format(i) * 20 for i in range(12)]
    documents = [Document("test", f"{i}.py", text) for i, text in enumerate(texts)]
    return Corpus(documents[:9], documents[9:], [])


@pytest.fixture(scope="module")
def module_patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, module_patch: pytest.MonkeyPatch) -> Path:
    """The work directory after all stages."""
    work = tmp_path_factory.mktemp("lab")
    module_patch.setattr(gpu_lab, "SMALL", TINY)
    module_patch.setattr(target_stage, "read_corpus", tiny_corpus)
    assert gpu_lab.main(["all", "--small", "--work", str(work)]) == 0
    return work


def place(folder: Path, seconds: float = 60.0) -> Workplace:
    return Workplace(folder, TINY, torch.device("cpu"), torch.float32, time.monotonic() + seconds)


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_result_says_where_it_comes_from(finished: Path) -> None:
    results = finished / "results"
    for stage in ("target", "text", "drafts", "compare", "replay"):
        assert set(json.loads((results / f"{stage}.json").read_text())["origin"]) == ORIGIN, stage
    assert all(set(line["origin"]) == ORIGIN for line in read_lines(results / "shapes.jsonl"))
    assert "revision" in (results / "profile-flat.txt").read_text().splitlines()[0]


def test_what_was_compared(finished: Path) -> None:
    facts = json.loads((finished / "results" / "compare.json").read_text())
    assert set(facts["acceptance"]) == {"clover2 chain:2"}
    assert all(1.0 <= tau <= 3.0 for tau in facts["acceptance"].values())
    results = [line["result"] for line in read_lines(finished / "results" / "compare" / "results.jsonl")]
    assert ["task" in result for result in results] == [False, True, True]
    weights = list((finished / "compare.work" / "drafts").iterdir())
    assert len(weights) == 1  # the comparison trained nothing again


def test_shapes_are_timed_scaled_and_held_against_the_bars(finished: Path) -> None:
    lines = read_lines(finished / "results" / "shapes.jsonl")
    assert [(line["shape"], line["draft_vocabulary"]) for line in lines] == [
        ("flat", 64), ("flat", 16), ("deep", 64), ("deep", 16),
    ]  # fmt: skip
    for line in lines:
        assert line["layers_scaled"] == (line["shape"] == "deep") and line["nodes"] == 26
        assert set(line["bars"]) == {
            "plain_over_bandwidth", "verify_over_plain", "draft_over_plain", "step_over_plain",
        }  # fmt: skip
        ratio = line["milliseconds"]["plain"] / line["least_plain_milliseconds"]
        assert line["bars"]["plain_over_bandwidth"]["ratio"] == pytest.approx(ratio)
    shape = TINY.shapes[1]
    deep = 4 * (6 * shape.layer_parameters + shape.head_parameters - 64 * 32)  # all but the embedding table
    assert lines[2]["weight_bytes"] == deep


def test_the_replay_is_called_a_simulation(finished: Path) -> None:
    replay = json.loads((finished / "results" / "replay.json").read_text())
    first = read_lines(finished / "results" / "shapes.jsonl")[0]["milliseconds"]
    tau = replay["tau"]["clover2 chain:2"]
    expected = tau * first["plain"] / first["step"]
    assert replay["shapes"][0]["simulated_speedup"]["clover2 chain:2"] == pytest.approx(expected)
    assert "random weights" in replay["simulated"]


def test_what_is_done_is_not_done_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.lab.shapes._measure", lambda *_: pytest.fail("timed again"))
    monkeypatch.setattr("benchmarks.lab.profiling._profile", lambda *_: pytest.fail("profiled again"))
    monkeypatch.setattr("benchmarks.lab.drafts.run_compare", lambda *_: pytest.fail("compared again"))
    assert gpu_lab.main(["all", "--small", "--work", str(finished)]) == 0


def test_a_call_without_time_ends_with_3_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lab, "SMALL", TINY)
    monkeypatch.setattr(target_stage, "read_corpus", tiny_corpus)
    assert gpu_lab.main(["target", "--small", "--work", str(tmp_path), "--minutes", "0.3"]) == 3
    assert (tmp_path / "target.state").exists() and not (tmp_path / "target").exists()
    assert gpu_lab.main(["target", "--small", "--work", str(tmp_path)]) == 0
    facts = json.loads((tmp_path / "results" / "target.json").read_text())
    assert facts["steps"] > 0 and facts["held_out_loss"] > 0


def test_ctrl_c_comes_when_the_time_is_up_and_not_later(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        with interrupted_in_time(place(tmp_path, seconds=0.05)):
            time.sleep(20)
    with interrupted_in_time(place(tmp_path)):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "it would come later"
    with pytest.raises(KeyboardInterrupt):  # the user's own
        with interrupted_in_time(place(tmp_path)):
            raise KeyboardInterrupt


def test_stages_that_lack_their_input_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stage, message in (("text", "run the stage target first"), ("replay", "run them first")):
        assert gpu_lab.main([stage, "--small", "--work", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
    assert gpu_lab.main(["shapes", "--small", "--work", str(tmp_path), "--shape", "9B"]) == 2
    assert "'9B'; known are" in capsys.readouterr().err


def test_sizes_can_be_chosen() -> None:
    given = gpu_lab._parse(
        ["target", "--hidden", "768", "--layers", "12", "--draft-steps", "7", "--shape", "8B"]
    )
    sizes = gpu_lab._sizes(FULL, given)
    shape = sizes.target
    assert (shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.inner) == (768, 12, 12, 6, 2112)
    assert sizes.draft_steps == 7 and [shape.name for shape in sizes.shapes] == ["8B"]
    full = FULL.target
    assert 1e8 < full.layers * full.layer_parameters + full.head_parameters < 3e8
    parameters = {s.name: s.layers * s.layer_parameters + s.head_parameters for s in FULL.shapes}
    assert parameters["1B"] == 1_235_814_400  # Llama-3.2-1B
    assert parameters["8B"] == 8_030_261_248  # Llama-3.1-8B
    assert parameters["70B"] == 70_553_706_496


def test_a_suite_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no target yet"):
        drafts_stage.train_drafts(place(tmp_path))


@pytest.mark.parametrize("module", [shapes_stage, profiling_stage])
def test_examples_in_docstrings(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_what_cannot_be_compiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("graph break\nin a layer")

    monkeypatch.setattr(captured, "CompiledRunner", fail)
    work = replace(place(tmp_path), compiled=True, sizes=replace(TINY, shapes=TINY.shapes[:1]))
    shapes_stage.time_shapes(work)
    lines = read_lines(work.result("shapes.jsonl"))
    assert [(line["compiled"], line.get("failed")) for line in lines] == [
        (False, None), (False, None), (True, "torch.compile: graph break in a layer"),
        (True, "torch.compile: graph break in a layer"),
    ]  # fmt: skip
