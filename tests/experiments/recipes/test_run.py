"""The recipe of the embedded models, as far as no training is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from clover import assets
from clover.errors import UserError
from experiments.recipes import run
from experiments.recipes.options import RecipeOptions
from experiments.recipes.run import run_recipe

GIVEN = {
    "facts.json": json.loads((assets.TARGET.parent / "facts.json").read_text()),
    "held_out_prompts.json": {"prompts": ["a"], "development": ["b"]},
}


class Begun(Exception):
    """The work has begun."""


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin() -> NoReturn:
        raise Begun

    monkeypatch.setattr(run, "read_corpus", begin)


def output_of_an_earlier_run(folder: Path) -> Path:
    (folder / "target").mkdir(parents=True)
    for name, content in GIVEN.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def test_a_target_that_can_be_kept_lets_the_work_begin(tmp_path: Path) -> None:
    kept = output_of_an_earlier_run(tmp_path / "kept")
    with pytest.raises(Begun):
        run_recipe(RecipeOptions(output=tmp_path / "out", keep_target=kept))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("facts.json", {}, "facts.json: target is missing"),
        ("facts.json", GIVEN["facts.json"] | {"sources": [{"name": "x"}]}, "facts.json: sources.0.version"),
        ("held_out_prompts.json", None, "cannot read .*held_out_prompts.json"),
        ("held_out_prompts.json", {"prompts": []}, "held_out_prompts.json: development is missing"),
        ("target", None, "has no target to keep"),
    ],
)
def test_what_the_kept_target_lacks_is_said_before_the_work(
    tmp_path: Path, file: str, content: object, message: str
) -> None:
    kept = output_of_an_earlier_run(tmp_path / "kept")
    if file == "target":
        (kept / file).rmdir()
    elif content is None:
        (kept / file).unlink()
    else:
        (kept / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        run_recipe(RecipeOptions(output=tmp_path / "out", keep_target=kept))
