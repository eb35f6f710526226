from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.recipes.__main__ import app
from experiments.recipes.options import RecipeOptions


def test_recipe_passes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RecipeOptions] = []
    monkeypatch.setattr("experiments.recipes.run.run_recipe", seen.append)
    assert CliRunner().invoke(app, ["embedded", "--output", "out"]).exit_code == 0
    more = ["--minutes", "3", "--work", "w", "--overwrite"]
    assert CliRunner().invoke(app, ["embedded", "--output", "out", *more]).exit_code == 0
    assert seen == [
        RecipeOptions(Path("out")),
        RecipeOptions(Path("out"), Path("w"), minutes=3, overwrite=True),
    ]
    assert [one.folder for one in seen] == [Path("out.work"), Path("w")]
