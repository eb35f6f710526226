"""``clover export``: write a draft as other engines load it."""

from pathlib import Path
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
    int, typer.Option(metavar="K", min=1, max=64, help="Tokens per step that the speculators file names.")
]


def export(
    draft: Draft,
    directory: Folder,
    to: To,
    target: options.Target = None,
    draft_tokens: DraftTokens = 5,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a draft for another engine; its weights stay as they are. See docs/vllm.md for how to serve it."""
    from clover.integrations.export import export as write

    options.hide_loading_bars()
    write(to, draft, directory, target, draft_tokens, overwrite)
    print(f"wrote {directory}")
    if to == "vllm":
        print(
            f"vllm serve TARGET --speculative-config "
            f'\'{{"method": "eagle", "model": "{directory}", "num_speculative_tokens": {draft_tokens}}}\''
        )
