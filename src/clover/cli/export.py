"""``clover export``: write a draft as other engines load it."""

import json
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from clover import options

To = Annotated[
    Literal["vllm", "speculators"],
    typer.Option(
        help="vllm: a directory that vLLM's EAGLE driver loads with Clover's plugin; speculators: the "
        "configuration of the library of that name, for its tools."
    ),
]
Draft = Annotated[
    str,
    typer.Argument(
        metavar="DRAFT", help="Trained draft: a directory, a name on the hub, or an embedded one."
    ),
]
Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory to write; it appears when it is whole.")
]
DraftTokens = Annotated[
    int,
    typer.Option(
        metavar="K",
        min=1,
        max=64,
        help="Tokens per step that the speculators file and the printed command name.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        help="Target that the speculators file names as verifier, and the printed command as the model to serve. "
        "Left out: none.",
    ),
]


def export(
    draft: Draft,
    directory: Folder,
    to: To,
    target: Target = None,
    draft_tokens: DraftTokens = 2,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a draft for another engine; its weights stay as they are. See docs/vllm.md for how to serve it."""
    from clover.integrations.export import export as write

    options.hide_loading_bars()
    lost = write(to, draft, directory, target, draft_tokens, overwrite)
    print(f"wrote {directory}" + (f" ({lost})" if lost else ""))
    if to == "vllm":
        config = {"method": "eagle", "model": str(directory), "num_speculative_tokens": draft_tokens}
        print(f"vllm serve {quote(target or 'TARGET')} --speculative-config {quote(json.dumps(config))}")
