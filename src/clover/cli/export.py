"""``clover export``: write a draft in the format of another engine."""

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from clover import options
from clover.options import argument, option, takes_options


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `clover export`."""

    draft: Annotated[
        str,
        argument(
            "Trained draft: a directory, a name on the hub, an embedded one, or one of a package.",
            metavar="DRAFT",
        ),
    ]
    directory: Annotated[Path, argument("Directory to write; it appears when it is whole.", metavar="DIR")]
    to: Annotated[
        Literal["vllm", "speculators"],
        option(
            "vllm: a directory that vLLM's EAGLE driver loads with Clover's plugin; speculators: the configuration of "
            "the library of that name, for its tools."
        ),
    ]
    target: Annotated[
        str | None,
        option(
            "Target that the speculators file names as verifier, and the printed command as the model to serve. Left "
            "out: none.",
            metavar="NAME|DIR",
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        option(
            "Tokens per step that the speculators file and the printed command name.",
            metavar="K",
            min=1,
            max=64,
        ),
    ] = 2
    overwrite: options.Overwrite = False


@takes_options
def export(options: ExportOptions) -> None:
    """Write a draft for another engine, with the same weights. See docs/vllm.md for how to serve it."""
    from clover.integrations.export import export as write

    to, directory, target, tokens = options.to, options.directory, options.target, options.draft_tokens
    lost = write(to, options.draft, directory, target, tokens, options.overwrite)
    print(f"wrote {directory}" + (f" ({lost})" if lost else ""))
    if to == "vllm":
        config = {"method": "eagle", "model": str(directory), "num_speculative_tokens": tokens}
        print(f"vllm serve {quote(target or 'TARGET')} --speculative-config {quote(json.dumps(config))}")
