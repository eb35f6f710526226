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
            "Trained draft: a directory, a name on the Hub, an embedded draft, or a draft of a package.",
            metavar="DRAFT",
        ),
    ]
    directory: Annotated[Path, argument("Output directory; written when complete.", metavar="DIR")]
    to: Annotated[
        Literal["vllm", "speculators"],
        option(
            "vllm: a directory that vLLM's EAGLE driver loads with Clover's plugin; speculators: a configuration for "
            "the tools of the speculators library."
        ),
    ]
    target: Annotated[
        str | None,
        option(
            "Target to name as the verifier in the speculators file and as the model in the printed command. "
            "Default: none.",
            metavar="NAME|DIR",
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        option(
            "Draft tokens per step in the speculators file and the printed command.",
            metavar="K",
            min=1,
            max=64,
        ),
    ] = 2
    overwrite: options.Overwrite = False


@takes_options
def export(options: ExportOptions) -> None:
    """Write a draft with the same weights for another engine. To serve it, see docs/vllm.md."""
    from clover.integrations.export import export as write

    to, directory, target, tokens = options.to, options.directory, options.target, options.draft_tokens
    lost = write(to, options.draft, directory, target, tokens, options.overwrite)
    print(f"wrote {directory}" + (f" ({lost})" if lost else ""))
    if to == "vllm":
        config = {"method": "eagle", "model": str(directory), "num_speculative_tokens": tokens}
        print(f"vllm serve {quote(target or 'TARGET')} --speculative-config {quote(json.dumps(config))}")
