"""``clover chat``: a conversation in the terminal that keeps its cache between turns."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from clover.cli.generation import GenerationOptions, describe
from clover.errors import UserError
from clover.options import USER_ERROR, MaxNewTokens, Temperature, takes_options

if TYPE_CHECKING:
    from clover.api import Conversation


@dataclass(frozen=True)
class ChatOptions(GenerationOptions):
    """The options of `clover chat`, whose answers are longer, and drawn."""

    max_new_tokens: MaxNewTokens = 1024
    temperature: Temperature = 0.7


@takes_options
def chat(options: ChatOptions) -> None:
    """Talk with the target; /new starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer."""
    model, request = options.load(), options.request
    # What no question can mend (an option, a target that cannot chat) ends the command before the first one.
    model.request([{"role": "user", "content": "?"}], **request)
    conversation = model.chat(**request)
    answered: list[bool] = []
    while (text := _read_turn()) is not None:
        if text == "/new":
            conversation = model.chat(**request)
        elif text:
            answered.append(_answer(conversation, text))
    if answered and not any(answered):
        raise typer.Exit(USER_ERROR)


def _read_turn() -> str | None:
    """Read what the user says, without its outer blanks; None at the end."""
    try:
        text = input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    return None if text == "/exit" else text


def _answer(conversation: "Conversation", text: str) -> bool:
    """Print the answer as it is written, or one line about why there is none."""
    try:
        for part in conversation.say(text):
            print(part, end="", flush=True)
        print()
    except KeyboardInterrupt:
        print(" …")
    except UserError as error:
        print(f"clover: error: {error}; /new starts over", file=sys.stderr)
        return False
    else:
        if conversation.last is not None:
            print(describe(conversation.last), file=sys.stderr)
    return True
