from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, get_args

import pytest
import torch
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from clover.options import ModelOptions, command_line, next_command, takes_options


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


def test_threads_are_those_that_pytorch_computes_with(app: typer.Typer, seen: list[WorkOptions]) -> None:
    before = torch.get_num_threads()
    try:
        assert CliRunner().invoke(app, ["--threads", str(before + 1)]).exit_code == 0
        assert torch.get_num_threads() == before + 1 == seen[0].threads
    finally:
        torch.set_num_threads(before)


def test_a_command_line_chooses_the_same_options() -> None:
    expected = "clover work 'a b' --target t --batch-size 8 --batch-size 2 --quiet --json x.json"
    assert command_line("work", GIVEN, "files") == expected
    assert command_line("work", WorkOptions(), "files") == "clover work"


def test_every_option_has_its_name() -> None:
    """Left to itself, typer 0.27 calls an option --DTYPE whose metavar is that."""

    def work(options: WorkOptions) -> None: ...

    parameters = signature(takes_options(work)).parameters.values()
    said = {one.name: get_args(one.annotation)[1] for one in parameters}
    # The first of several names that are given stands where a default would.
    named = {
        name: one.param_decls or one.default for name, one in said.items() if isinstance(one, OptionInfo)
    }
    assert named["dtype"] == ("--dtype",) and named["batch_size"] == ("--batch-size",)
    assert ... not in named.values() and "file" not in named


def test_the_next_command_runs_the_same_target() -> None:
    options = ModelOptions(target="my models/one", dtype="bfloat16", weights="int8")
    line = next_command("use it", "serve", options, "--port", "80")
    assert line == "use it: clover serve --target 'my models/one' --dtype bfloat16 --weights int8 --port 80"
