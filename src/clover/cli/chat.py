"""``clover chat``: a conversation in the terminal that keeps its cache between turns."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clover.cli.generation import GenerationOptions, describe_gain, describe_generation
from clover.errors import UserError
from clover.options import USER_ERROR, Compare, MaxNewTokens, Temperature, option, takes_options

if TYPE_CHECKING:
    from clover.api import Conversation
    from clover.chat import Delta

_DIM, _PLAIN = "\033[2m", "\033[0m"


@dataclass(frozen=True)
class ChatOptions(GenerationOptions):
    """The options of `clover chat`; by default its answers are longer, and sampled."""

    max_new_tokens: MaxNewTokens = 1024
    temperature: Temperature = 0.7
    compare: Compare = False
    tools: Annotated[
        Path | None,
        option(
            "Functions that the model may call: a JSON file with a list in OpenAI's format. A call is shown, and you "
            "type its result."
        ),
    ] = None


@takes_options
def chat(options: ChatOptions) -> None:
    """Chat with the target. /new starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer."""
    tools = _read_tools(options.tools)
    _check_template(options.target, options.trust_remote_code)
    model, request = options.load(), options.request
    # An invalid option, or a target that cannot chat, must end the command before the first question.
    model.request([{"role": "user", "content": "?"}], tools=tools, **request)
    conversation = model.chat(tools, **request)
    answered: list[bool] = []
    while (text := _read_turn(_calls(conversation))) is not None:
        if text == "/new":
            conversation = model.chat(tools, **request)
        elif text:
            answered.append(_answer(conversation, text, options.compare))
    if answered and not any(answered):
        raise typer.Exit(USER_ERROR)


def _check_template(target: str | None, trust_remote_code: bool) -> None:
    """Raise UserError for a target without a chat template, before its weights are loaded."""
    from clover.target.loading import load_tokenizer
    from clover.target.source import find_source

    if target is None:
        return
    source = find_source(target)
    if source.gguf is not None:
        template = source.gguf.fields.get("tokenizer.chat_template")
    else:
        template = getattr(load_tokenizer(source, trust_remote_code), "chat_template", None)
    if not template:
        raise UserError(
            f"{target} has no chat template, so it cannot chat; use clover generate, which continues plain text"
        )


def _read_tools(file: Path | None) -> list[dict[str, Any]]:
    from clover.files import read_text
    from clover.validation import parse_json

    tools = parse_json(read_text(file), str(file)) if file else []
    if not isinstance(tools, list) or not all(isinstance(one, dict) and "function" in one for one in tools):
        raise UserError(
            f'{file} is not a list of tools, as in [{{"type": "function", "function": {{"name": …}}}}]'
        )
    return tools


def _calls(conversation: "Conversation") -> list[dict[str, Any]]:
    """Return the calls of the last answer that still need a result."""
    told = {one.get("tool_call_id") for one in conversation.messages}
    calls = [call for one in conversation.messages for call in one.get("tool_calls") or []]
    return [call for call in calls if call["id"] not in told]


def _read_turn(calls: list[dict[str, Any]]) -> str | None:
    """Read the user's message, or the result of the first call, without outer blanks; None at the end."""
    try:
        text = input(
            (f"{calls[0]['function']['name']} = " if calls else "> ") if sys.stdin.isatty() else ""
        ).strip()
    except EOFError:
        return None
    return None if text == "/exit" else text


def _answer(conversation: "Conversation", text: str, compare: bool) -> bool:
    """Print the answer as it is written, then the gain from drafting if `compare`; or one line with the error."""
    calls = _calls(conversation)
    said: dict[str, Any] = {"role": "user", "content": text}
    if calls:
        said = {"role": "tool", "tool_call_id": calls[0]["id"], "content": text}
    if len(calls) > 1:  # because the model answers only when it has all results
        conversation.messages.append(said)
        return True
    try:
        _print_parts(conversation.reply(said))
    except KeyboardInterrupt:
        print(" …")
    except UserError as error:
        print(f"clover: error: {error}; type /new to start over", file=sys.stderr)
        return False
    else:
        if conversation.last is not None:
            print(describe_generation(conversation.last), file=sys.stderr)
            if compare:
                _print_gain(conversation)
    return True


def _print_gain(conversation: "Conversation") -> None:
    """Write the answer again without drafting, and print its speed; Ctrl-C skips this."""
    assert conversation.last is not None
    try:
        print(describe_gain(conversation.last, conversation.again_plainly()), file=sys.stderr)
    except (KeyboardInterrupt, UserError) as error:
        print(f"the answer was not compared: {str(error) or 'interrupted'}", file=sys.stderr)


def _print_parts(parts: "Iterator[Delta]") -> None:
    """Print an answer; the reasoning before it goes to standard error, dim if that is a terminal."""
    dim, plain = (_DIM, _PLAIN) if sys.stderr.isatty() else ("", "")
    reasoned = False
    for part in parts:
        if part.reasoning:
            print(f"{dim}{part.reasoning}{plain}", end="", flush=True, file=sys.stderr)
            reasoned = True
        elif reasoned and (part.content or part.calls):
            print(file=sys.stderr)
            reasoned = False
        print(part.content, end="", flush=True)
        for call in part.calls:
            print(f"\n→ {call.name}({call.arguments})", end="", flush=True)
    print()
