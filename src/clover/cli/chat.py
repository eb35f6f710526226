"""``clover chat``: a conversation in the terminal that keeps its cache between turns."""

import sys
from typing import TYPE_CHECKING, Any

import typer

from clover import options
from clover.cli.statistics import describe
from clover.errors import UserError

if TYPE_CHECKING:
    from clover.api import Conversation


def chat(
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    method: options.Method = "auto",
    tree: options.Tree = None,
    plain: options.Plain = False,
    compile: options.Compile = False,
    max_new_tokens: options.MaxNewTokens = 1024,
    stop: options.Stop = None,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
) -> None:
    """Talk with the target; /new starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer."""
    request: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or (), "seed": seed}
    request |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    request |= {"repetition_penalty": repetition_penalty}

    from clover.api import load

    options.hide_loading_bars()

    model = load(
        target, draft, method=method, tree=tree, plain=plain, dtype=dtype, device=device,
        trust_remote_code=trust_remote_code, compile=compile,
    )  # fmt: skip
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
        raise typer.Exit(options.USER_ERROR)


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
