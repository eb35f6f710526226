"""The recipe for a chat model, whole, on a tiny random one: it continues wherever it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

import clover.data.features.write as write
import clover.write
from clover import load
from clover.errors import UserError
from clover.train.objective import Objective
from clover.train.record import read_record
from experiments.recipes.options import ChatRecipeOptions
from experiments.recipes.smollm2 import Training, make_drafts, plan_trainings
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target, and prompts of two licences."""
    folder = tmp_path_factory.mktemp("chat")
    save_tiny_pair(folder)
    texts = [("MIT", "mine", f"question {i}?") for i in range(12)] + [("CC-BY-NC-4.0", "theirs", "x")]
    rows = [
        {"messages": [{"role": "user", "content": text}], "licence": licence, "source": source}
        for licence, source, text in texts
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def options(files: Path, output: Path, **more: Any) -> ChatRecipeOptions:
    small = {
        "tokens": 300,
        "texts": 8,
        "max_length": 48,
        "batch_size": 4,
        "dtype": "float32",
        "own_prompts": 0,
    }
    place = {"prompts": files / "prompts.jsonl", "target": str(files / "target")}
    return ChatRecipeOptions(output, **place | small | more)


def stop(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    """Let an interrupt come at a call of a function, counted from 1, instead of what it does."""
    calls: list[int] = []
    real = getattr(owner, name)

    def stopping(*given: Any, **named: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == number:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(owner, name, stopping)


def test_a_run_that_is_stopped_at_every_stage_goes_on(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, work = tmp_path / "out", tmp_path / "out.work"
    chosen = options(files, output, systems=("recall", "clover1", "eagle3"), seeds=(0,))
    for place in (
        (clover.write, "append_lines", 2),  # the second text
        (write, "_write_shard", 1),
        (Objective, "loss", 2),
    ):
        with monkeypatch.context() as patched, pytest.raises((KeyboardInterrupt, typer.Exit)):
            stop(patched, *place)
            make_drafts(chosen)
    make_drafts(chosen)
    # The wide store serves Recall, too; Clover-1 by its paper reads the states before the norm.
    assert sorted(folder.name for folder in work.glob("features-*")) == [
        "features-low_middle_high",
        "features-pre_norm",
    ]
    sources = json.loads((work / "sources.json").read_text())["sources"]
    assert [(one["name"], one["rows"], one["used"]) for one in sources] == [
        ("mine", 12, True),
        ("theirs", 1, False),
    ]
    assert sorted(one.name for one in output.iterdir()) == ["clover1", "clover1-paper", "eagle3", "recall"]
    for one in output.iterdir():
        assert abs(read_record(one).result.tokens - 300) < 100, one.name
    model = load(files / "target", output / "recall", tree="own")
    assert model.generate([{"role": "user", "content": "hello"}], max_new_tokens=8).acceptance.drafted
    capsys.readouterr()
    make_drafts(chosen)
    assert "$ clover" not in capsys.readouterr().err  # everything is there


@pytest.mark.long
def test_a_target_writes_prompts_beside_those_of_a_file_or_all_of_them(files: Path, tmp_path: Path) -> None:
    for name, prompts, expected in (("with", files / "prompts.jsonl", 4), ("without", None, 8)):
        more = {"prompts": prompts, "own_prompts": None, "max_length": 127}
        make_drafts(options(files, tmp_path / name, systems=("medusa",), tokens=40, **more))
        work = tmp_path / f"{name}.work"
        own = (work / "own.jsonl").read_text().splitlines()
        assert expected / 2 < len(own) <= expected  # not each of a random model's turns ends
        assert (work / "written.jsonl").exists() == (prompts is not None)


def test_other_options_are_refused(files: Path, tmp_path: Path) -> None:
    one = {"systems": ("medusa:num_heads=2",), "tokens": 40, "seeds": (3,)}
    make_drafts(options(files, tmp_path / "out", **one))
    assert (tmp_path / "out" / "medusa-num_heads-2-seed3").is_dir()
    (tmp_path / "prompts.jsonl").write_text((files / "prompts.jsonl").read_text() + "\n")
    for changed, name in (
        ({"texts": 7}, "texts"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"own_prompts": 1}, "own prompts"),
        ({"prompts": tmp_path / "prompts.jsonl"}, "prompts"),
    ):
        with pytest.raises(UserError, match=f"was begun with another {name}"):
            make_drafts(options(files, tmp_path / "out", **changed))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"systems": ("nothing",)}, "no draft system 'nothing'"),
        ({"systems": ("clover1:width=3",)}, "no option 'width'"),
        ({"systems": ("clover1:connection",)}, "must be FIELD=VALUE"),
        ({"systems": ("medusa",), "recipes": ("paper",)}, "medusa's paper is not known"),
        ({"recipes": ("other",)}, "must be default or paper"),
        ({"prompts": None}, "there are no prompts"),
    ],
)
def test_mistakes_are_found_before_anything_is_done(
    files: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_drafts(options(files, tmp_path / "out", **wrong))
    assert not list(tmp_path.glob("out.work/*"))


def test_the_plan() -> None:
    plan = plan_trainings(ChatRecipeOptions(Path("x")))
    assert [one.name for one in plan] == [
        *("recall", "clover2", "clover1", "medusa", "eagle", "eagle3"),
        *("clover2-paper", "clover1-paper", "eagle-paper"),
        *("recall-seed1", "clover2-seed1", "eagle-seed1"),
    ]
    chosen = ChatRecipeOptions(Path("x"), systems=("clover1", "medusa"), seeds=(2,))
    assert [one.name for one in plan_trainings(chosen)] == [
        "clover1-seed2",
        "medusa-seed2",
        "clover1-paper-seed2",
    ]
    assert Training("eagle", fields=("num_heads=3",)).arguments[-2:] == ["--set", "num_heads=3"]
