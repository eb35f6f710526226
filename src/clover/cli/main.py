"""The frame of the command line: registers the commands and turns errors into one line and an exit code."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from clover import __version__
from clover.cli import (
    audit,
    cache,
    chat,
    export,
    features,
    generate,
    measure,
    serve,
    train,
    write,
)
from clover.errors import REMOVED, UserError, is_out_of_memory
from clover.files import check_characters, explain
from clover.options import CLOSED_PIPE, INTERRUPTED, USER_ERROR


class _Commands(typer.core.TyperGroup):
    """The commands; a removed one raises UserError with the line that says what replaces it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in REMOVED:
            raise UserError(REMOVED[cmd_name])
        return command


class _Notes(logging.Handler):
    """Print what the log says, such as which draft was found, as lines on what is standard error then."""

    def emit(self, record: logging.LogRecord) -> None:
        print("clover:", self.format(record), file=sys.stderr)


app = typer.Typer(
    name="clover",
    cls=_Commands,
    help="Faster text from a language model with the same output: speculative decoding with Clover drafts.",
    epilog="Most commands take the embedded target and draft where --target and --draft are left out.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    *(generate.generate, chat.chat, serve.serve, audit.audit, export.export, write.write, train.train),
    *(features.features, measure.demo, measure.evaluate, measure.tune, measure.cost, measure.bench),
    cache.cache,
)
for _command in _COMMANDS:
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"clover {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # left unset, it warns where a process forks
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code; a warning is one line, as an error is.

    When the reader of its output goes away, as in ``clover audit | head``, the command ends without a word.
    """
    warnings.formatwarning = lambda message, *_, **__: f"clover: warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what a terminal's encoding lacks must not end a command
            stream.reconfigure(errors="replace")
    try:
        code = run()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # typer and rich make SystemExit of it.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        code, nowhere = CLOSED_PIPE, os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # Python flushes them once more as it ends
            os.dup2(nowhere, output)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 2 for what the user can mend, 130 when interrupted.

    A user's mistake prints one line ``clover: error: …`` on stderr; with ``CLOVER_DEBUG=1`` it is raised instead, as
    errors in the program itself always are. The arguments are this process's own when left out.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    message, notes = None, _Notes()
    logger = logging.getLogger("clover")
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    try:
        for argument in arguments:  # bytes that are no UTF-8 come as lone surrogates
            check_characters(argument, f"the argument {argument!a}")
        command = typer.main.get_command(app)
        code = command.main(list(arguments) or ["--help"], "clover", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        message, code = _explain(error), USER_ERROR
        if message is None or os.environ.get("CLOVER_DEBUG") == "1":
            raise
    finally:
        logger.removeHandler(notes)
    if code == INTERRUPTED:
        message = "interrupted"
    if message is not None:
        print("clover: error:", " ".join(message.split()), file=sys.stderr)
    return code


def _explain(error: Exception) -> str | None:
    """Return what to tell the user, or None when the error is a defect of the program."""
    # Usage errors of typer share no public class.
    if format_message := getattr(error, "format_message", None):
        return _removed_option(error) or format_message()
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not UTF-8 text: {error.reason} at byte {error.start}"
    if isinstance(error, OSError):
        problem = explain(error.errno) if error.errno else str(error)
        return f"{error.filename}: {problem}" if error.filename else problem
    if is_out_of_memory(error):
        return "out of memory; use a smaller --batch-size or --batch-tokens, or --dtype bfloat16"
    return None


def _removed_option(error: Any) -> str | None:
    """Return the line for the unknown option of a usage error, if an earlier version had it."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    command = context.command_path.partition(" ")[2] if context else ""
    return REMOVED.get(f"{command} {option}", REMOVED.get(str(option)))
