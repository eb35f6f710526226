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

from clover.engine.compiled import CompiledRunner
from clover.errors import UserError
from clover.measure.bench import run_bench
from clover.measure.methods import (
    TRANSFORMERS,
    TRANSFORMERS_LOOKUP,
    load_assistant,
    make_method,
    method_names,
)
from clover.measure.options import BenchOptions
from clover.measure.session import AUTO, PLAIN, Session
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model


def test_all_methods_write_the_same(session: Session) -> None:
    (batch, *_) = session.batches(1)
    names = method_names(["chain:3", "drawn:chain:2"], reference=True, assisted=True)
    methods = [make_method(name, session, session.target.model) for name in names]
    texts = {one.name: one.decode(batch).texts for one in methods}
    assert len(texts) == 9 and set(texts.values()) == {texts[PLAIN]}
    assert [one.drafts for one in methods] == [False, True, True, False, True, True, False, False, False]
    assert [one.nodes for one in methods][3:] == [None, 4, 3, None, None, None]
    assert methods[0].nodes == 1 and methods[1].nodes is None
    assert len({one.label for one in methods}) == 9


def test_what_is_comparable_and_what_decodes_batches(session: Session) -> None:
    own, drawn, theirs = (make_method(name, session) for name in ("own", "drawn:chain:2", TRANSFORMERS))
    assert own.comparable(0.0) and own.comparable(1.0)
    assert drawn.comparable(0.0) and not drawn.comparable(1.0)
    assert theirs.comparable(0.0) and not theirs.comparable(0.5)
    assert theirs.refusal(4) is own.refusal(4) is None
    lookup = make_method(TRANSFORMERS_LOOKUP, session)
    assert lookup.refusal(1) is None and "not able" in str(lookup.refusal(2))


def test_steps_are_compiled_on_demand(session: Session) -> None:
    for name in (PLAIN, "own", AUTO, "chain:2"):
        compiled = make_method(name, session, compile="eager").engine
        assert compiled is not None and isinstance(compiled.runner, CompiledRunner)
        ordinary = make_method(name, session).engine
        assert ordinary is not None and not isinstance(ordinary.runner, CompiledRunner)


def test_an_assistant_needs_the_same_vocabulary(session: Session, tmp_path: Path) -> None:
    config = tiny_config("llama")
    tiny_model("llama", config=config).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match=f"vocabulary of 50, the target one of {session.target.vocab_size}"):
        load_assistant(str(tmp_path / "other"), session.target, False)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_assistant(str(tmp_path / "none"), session.target, False)


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
    assert out.count("not able") == 2 and picture.stat().st_size > 1000


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
