"""The frame of the command line: it registers the commands, and turns errors into one line and an exit code."""

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
from clover.cli import audit, cache, chat, export, features, generate, measure, serve, train, write
from clover.errors import REPLACEMENTS, UserError, is_out_of_memory
from clover.files import check_characters, explain
from clover.options import CLOSED_PIPE, INTERRUPTED, USER_ERROR


class _Commands(typer.core.TyperGroup):
    """The commands. A removed command raises UserError, which names its replacement."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in REPLACEMENTS:
            raise UserError(REPLACEMENTS[cmd_name])
        return command


class _Notes(logging.Handler):
    """Print log records, such as the name of the draft that was found, as lines on the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print("clover:", self.format(record), file=sys.stderr)


app = typer.Typer(
    name="clover",
    cls=_Commands,
    help="Lossless speculative decoding with Clover drafts: the same text from a language model, faster.",
    epilog="Without --target and --draft, most commands use the embedded target and draft.",
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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # unset, it warns when a process forks
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def main() -> NoReturn:
    """Run this process's command line, and exit with its code. Each warning is one line, like an error.

    If the reader closes the pipe, as in ``clover audit | head``, the command ends without a message.
    """
    warnings.formatwarning = lambda message, *_, **__: f"clover: warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an unknown character must not end a command
            stream.reconfigure(errors="replace")
    try:
        code = run()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # typer and rich turn BrokenPipeError into SystemExit.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        code, nowhere = CLOSED_PIPE, os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # because Python flushes them once more at exit
            os.dup2(nowhere, output)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 2 for an error that the user can fix, 130 when interrupted.

    A user's error prints one line ``clover: error: …`` on stderr; with ``CLOVER_DEBUG=1`` it is raised instead. Defects
    of the program are always raised. The default arguments are those of this process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    message, notes = None, _Notes()
    logger = logging.getLogger("clover")
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    try:
        for argument in arguments:  # because bytes that are not UTF-8 become lone surrogates
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
    """Return the message for the user, or None if the error is a defect of the program."""
    # typer's usage errors have no public base class.
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
    """Return the message about a removed option, if the unknown option of a usage error is one."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    command = context.command_path.partition(" ")[2] if context else ""
    return REPLACEMENTS.get(f"{command} {option}", REPLACEMENTS.get(str(option)))
