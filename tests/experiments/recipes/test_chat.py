"""The recipe for a chat model, whole, on a tiny random one: it goes on wherever it was stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import clover.data.features.write as write
import clover.write
import experiments.recipes.chat as chat
from clover import assets, load
from clover.errors import UserError
from clover.target import loading
from clover.train.objective import Objective
from experiments.command import command_line
from experiments.recipes.chat import Training, plan_trainings, run_chat_recipe
from experiments.recipes.options import ChatRecipeOptions
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target, and prompts of several licences."""
    folder = tmp_path_factory.mktemp("chat")
    save_tiny_pair(folder)
    rows = [
        {"messages": [{"role": "user", "content": f"question {i}?"}], "licence": "MIT", "source": "mine"}
        for i in range(12)
    ]
    rows.append(
        {"messages": [{"role": "user", "content": "x"}], "licence": "CC-BY-NC-4.0", "source": "theirs"}
    )
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
    return ChatRecipeOptions(
        output, prompts=files / "prompts.jsonl", target=str(files / "target"), **small | more
    )


def run(chosen: ChatRecipeOptions) -> str:
    console = Console(file=StringIO(), width=200)
    run_chat_recipe(chosen, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


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
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    chosen = options(files, output, systems=("recall", "clover1", "eagle3"))
    stages = [
        (chat, "accept_prompts", 1),
        (chat, "weights_fingerprint", 1),
        (clover.write, "append_lines", 2),  # the second text
        (write, "_write_shard", 1),
        (Objective, "loss", 2),
        (chat, "write_chat_cards", 2),
        (Objective, "loss", 3),
    ]
    for place in stages:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            stop(patched, *place)
            run(chosen)
    shown = run(chosen)
    stores = [folder.name for folder in (tmp_path / "out.work").glob("features-*")]
    # no third for recall and clover1
    assert sorted(stores) == ["features-low_middle_high", "features-pre_norm"]
    assert "answers" in shown and "draft 5 of 5: recall-seed1" in shown
    facts = json.loads((output / "facts.json").read_text())
    names = [one.name for one in plan_trainings(chosen)]
    assert sorted(one["name"] for one in facts["drafts"]) == sorted(names)
    assert [(one["name"], one["rows"], one["used"]) for one in facts["sources"]] == [
        ("mine", 12, True),
        ("theirs", 1, False),
    ]
    for one in facts["drafts"]:
        assert abs(one["seen"] - 300) < 100, one["name"]
        assert one["recipe"] in (output / one["name"] / "README.md").read_text()
    assert (output / "README.md").read_text().count("| Clover-1") == 2
    model = load(files / "target", output / "recall", tree="own")
    assert model.generate([{"role": "user", "content": "hello"}], max_new_tokens=8).acceptance.drafted
    (output / "recall" / "tuning.json").write_text("mine")
    monkeypatch.setattr(Objective, "loss", lambda *_: pytest.fail("a finished draft was trained again"))
    run(chosen)
    assert (output / "recall" / "tuning.json").read_text() == "mine"


def test_a_target_writes_prompts_beside_those_of_a_file_or_all_of_them(files: Path, tmp_path: Path) -> None:
    for name, prompts, expected in (("with", files / "prompts.jsonl", 4), ("without", None, 8)):
        chosen = options(
            files, tmp_path / name, systems=("medusa",), tokens=40, max_length=127, own_prompts=None
        )
        run(ChatRecipeOptions(**vars(chosen) | {"prompts": prompts}))
        own = (tmp_path / f"{name}.work" / "own.jsonl").read_text().splitlines()
        assert expected / 2 < len(own) <= expected  # not each of a random model's turns ends
        card = (tmp_path / name / "README.md").read_text()
        assert "SmolLM2" not in card and "pip install" not in card
        assert f"wrote {len(own)} of the prompts" in card and ("| mine |" in card) == (prompts is not None)


def test_prompts_are_needed_once_and_other_options_are_refused(files: Path, tmp_path: Path) -> None:
    chosen = options(files, tmp_path / "out", systems=("medusa",), tokens=40)
    run(chosen)
    again = options(files, tmp_path / "out", systems=("medusa:num_heads=2",), tokens=40, seeds=(0, 3))
    assert "draft 2 of 2: medusa-num_heads-2-seed3" in run(
        ChatRecipeOptions(**vars(again) | {"prompts": None})
    )
    with pytest.raises(UserError, match="was begun with another texts"):
        run(options(files, tmp_path / "out", texts=7))
    with pytest.raises(UserError, match="was begun with another dtype"):
        run(options(files, tmp_path / "out", dtype="bfloat16"))
    with pytest.raises(UserError, match="was begun with another own prompts"):
        run(options(files, tmp_path / "out", own_prompts=1))
    (tmp_path / "prompts.jsonl").write_text((files / "prompts.jsonl").read_text() + "\n")
    with pytest.raises(UserError, match="was begun with another prompts"):
        run(ChatRecipeOptions(**vars(chosen) | {"prompts": tmp_path / "prompts.jsonl"}))


def test_the_draft_of_as_many_tokens_as_are_asked_for_is_published(files: Path, tmp_path: Path) -> None:
    output, found = tmp_path / "out", []
    for tokens in (40, 400, 40):
        run(options(files, output, systems=("medusa",), seeds=(0,), tokens=tokens))
        (facts,) = json.loads((output / "facts.json").read_text())["drafts"]
        found.append((facts["seen"], (output / "medusa" / "model.safetensors").read_bytes()))
    assert found[0] == found[2] and found[0][0] < found[1][0]


def test_a_dtype_is_measured_once(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for faster in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(loading, "fastest_dtype", lambda *_, faster=faster: faster)
        run(options(files, tmp_path / "out", systems=("medusa",), tokens=40, dtype="fastest"))
    assert json.loads((tmp_path / "out.work" / "begun.json").read_text())["dtype"] == "float32"


def test_no_prompts_are_refused_and_leave_nothing(files: Path, tmp_path: Path) -> None:
    chosen = options(files, tmp_path / "out")
    with pytest.raises(UserError, match="there are no prompts"):
        run(ChatRecipeOptions(**vars(chosen) | {"prompts": None}))
    assert not (tmp_path / "out.work" / "begun.json").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"systems": ("nothing",)}, "no draft system 'nothing'"),
        ({"systems": ("clover1:width=3",)}, "no option 'width'"),
        ({"systems": ("clover1:connection",)}, "must be FIELD=VALUE"),
        ({"systems": ("medusa",), "recipes": ("paper",)}, "medusa's paper is not known"),
        ({"recipes": ("other",)}, "must be default or paper"),
    ],
)
def test_mistakes_are_found_before_anything_is_done(
    files: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(options(files, tmp_path / "out", **wrong))
    assert not (tmp_path / "out.work").exists()


def test_facts_of_another_recipe_are_refused_before_anything_is_done(files: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "facts.json").write_bytes((assets.TARGET.parent / "facts.json").read_bytes())
    with pytest.raises(UserError, match=r"facts.json, which .* did not write so: drafts.0.name is missing"):
        run(options(files, tmp_path / "out"))
    assert not (tmp_path / "out.work").exists()


def test_the_plan() -> None:
    plan = plan_trainings(ChatRecipeOptions(Path("x")))
    assert [one.name for one in plan] == [
        *("recall", "clover2", "clover1", "medusa", "eagle", "eagle3"),
        *("clover2-paper", "clover1-paper", "eagle-paper"),
        *("recall-seed1", "clover2-seed1", "eagle-seed1"),
    ]
    assert Training("eagle", "paper").draft["draft_vocab_size"] is None
    chosen = ChatRecipeOptions(Path("x"), systems=("clover1", "medusa"), seeds=(2,))
    assert [one.name for one in plan_trainings(chosen)] == [
        "clover1-seed2",
        "medusa-seed2",
        "clover1-paper-seed2",
    ]


@pytest.mark.long
def test_a_run_that_is_killed_goes_on(files: Path, tmp_path: Path) -> None:
    chosen = options(files, tmp_path / "out", own_prompts=4)
    arguments = [*command_line("recipes smollm2", chosen).split()[3:]]
    places = [
        "clover.write:append_lines:3",
        "clover.write:append_lines:2",
        "clover.data.features.write:save_file:1",
        "clover.train.objective:Objective.loss:2",
    ]
    for place in [*places, ""]:
        script = [sys.executable, "-c", KILLED, place, *arguments]
        done = subprocess.run(script, capture_output=True, text=True, timeout=300)
        assert done.returncode == (9 if place else 0), done.stderr
    assert len(list((tmp_path / "out").glob("*/model.safetensors"))) == 12


KILLED = """
import functools, importlib, os, sys
place = sys.argv[1]
if place:
    module, names, number = place.split(":")
    *path, name = names.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    real, calls = getattr(owner, name), []
    def killing(*given, **named):
        calls.append(name)
        if len(calls) == int(number):
            os._exit(9)
        return real(*given, **named)
    setattr(owner, name, killing)
from experiments.recipes.__main__ import app
app(sys.argv[2:])
"""
