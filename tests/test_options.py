from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from clover.options import ModelOptions, command_line, takes_options


@dataclass(frozen=True)
class WorkOptions(ModelOptions):
    files: Annotated[tuple[str, ...], typer.Argument(metavar="FILE")] = ()
    batch_sizes: Annotated[tuple[int, ...], typer.Option(min=1)] = (1, 4)
    quiet: Annotated[bool, typer.Option("--quiet")] = False
    json: Annotated[Path | None, typer.Option()] = None


GIVEN = WorkOptions(target="t", files=("a b",), batch_sizes=(8, 2), quiet=True, json=Path("x.json"))
LINE = ["a b", "--target", "t", "--batch-size", "8", "--batch-size", "2", "--quiet", "--json", "x.json"]


@pytest.fixture
def seen() -> list[WorkOptions]:
    return []


@pytest.fixture
def app(seen: list[WorkOptions]) -> typer.Typer:
    @takes_options
    def work(options: WorkOptions) -> None:
        """Do some work."""
        seen.append(options)

    app = typer.Typer()
    app.command()(work)
    return app


def test_fields_are_options(app: typer.Typer, seen: list[WorkOptions]) -> None:
    for arguments in (LINE, [], ["--batch-size", "3", "--batch-size", "3"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [GIVEN, WorkOptions(), WorkOptions(batch_sizes=(3,))]
    assert CliRunner().invoke(app, ["--batch-size", "0"]).exit_code == 2
    assert "Do some work." in CliRunner().invoke(app, ["--help"]).output


def test_a_command_line_chooses_the_same_options() -> None:
    expected = "clover work 'a b' --target t --batch-size 8 --batch-size 2 --quiet --json x.json"
    assert command_line("work", GIVEN, "files") == expected
    assert command_line("work", WorkOptions(), "files") == "clover work"
