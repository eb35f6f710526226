"""Commands, options and arguments that earlier versions had, each with the line that says what replaces it."""

from typing import Any

import typer.core

from clover.errors import UserError

# By the words of the command line: "compare", "recipe smollm2", "--plain" (of any command), "audit --server" (of one).
# The line goes after "clover: error: ".
REMOVED: dict[str, str] = {
    "--method": "--method was removed; give --tree auto, --tree plain, or --tree own for the draft's own tree",
    "--plain": "--plain was removed; give --tree plain",
    "compare": "clover compare is gone; run python -m experiments.compare in a clone of the repository",
    "recipe": "clover recipe is gone; use clover write and clover train, or in a clone python -m experiments.recipes",
    "vocabulary": "vocabulary is gone; use clover train --max-steps 0 --set draft_vocab_size=N --start-from DRAFT",
    "copies": "copies is gone; use clover train --max-steps 0 --start-from DRAFT",
    "audit --against": "--against is gone; every token is compared with the model as transformers runs it",
    "audit --no-float32": "--no-float32 is gone; an audit has one dtype, and --dtype float32 audits once more",
}


def replacement(command: str, option: str = "") -> str | None:
    """Return the line for a removed command, or for a removed option of it; None if there never was one.

    Args:
        command: the words of the command without "clover", such as "train" or "recipe smollm2".
        option: the option as it was typed, with its dashes.
    """
    if not option:
        return REMOVED.get(command)
    return REMOVED.get(f"{command} {option}", REMOVED.get(option))


def replacement_of_option(error: Any) -> str | None:
    """Return the line for the unknown option of a usage error of typer; None for other errors and options."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None:
        return None
    return replacement(_words(context), option)


class Commands(typer.core.TyperGroup):
    """The commands of `clover`; a removed one raises UserError with the line that says what replaces it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, None if there is none, as the method that this replaces."""
        command = super().get_command(ctx, cmd_name)
        if command is None and (line := replacement(f"{_words(ctx)} {cmd_name}".strip())):
            raise UserError(line)
        return command


def _words(context: Any) -> str:
    """Return the words of a command that is being parsed, without "clover"."""
    return context.command_path.partition(" ")[2]
