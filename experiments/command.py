"""The frame of the commands of `experiments/`."""

import sys
from typing import Any

import typer

from clover.errors import UserError
from clover.options import USER_ERROR
from clover.options import command_line as clover_command_line


def main(app: typer.Typer, name: str) -> None:
    """Run the command ``python -m experiments.NAME``; a user's mistake is one line and exit code 2."""
    try:
        app(prog_name=f"python -m experiments.{name}")
    except UserError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(USER_ERROR)


def command_line(name: str, options: Any, files: str = "") -> str:
    """Return the command line that chooses the same options; see `clover.options.command_line`."""
    return "python -m experiments." + clover_command_line(name, options, files).removeprefix("clover ")
