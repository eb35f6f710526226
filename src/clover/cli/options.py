"""What several commands share: options, each with its one name, type and help text, and exit codes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

USER_ERROR, INTERRUPTED = 2, 130  # exit codes

_MODELS, _DECODING, _SAMPLING = "Models", "Decoding", "Sampling"

Target = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        rich_help_panel=_MODELS,
        help="Target model: a directory or a name on the Hugging Face hub. Left out: the embedded one.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        rich_help_panel=_MODELS,
        help="Draft trained for the target: a directory, a name on the hub, or lookup (n-grams, nothing to train). "
        "Left out, with --target left out too: the embedded one.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        rich_help_panel=_MODELS,
        help="float32, bfloat16, float16 or float64. Left out: float32 on a CPU, bfloat16 on a GPU.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        rich_help_panel=_MODELS,
        help="cpu, cuda, cuda:1, … Left out: a GPU where there is one.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", rich_help_panel=_MODELS, help="Run model code that the hub delivers."
    ),
]

Tree = Annotated[
    str | None,
    typer.Option(
        metavar="TREE",
        rich_help_panel=_DECODING,
        help="Token tree to verify: clover2 (25 nodes), medusa (63), chain:5, chain:12:0.06 (ends where the "
        "draft is unsure), a JSON file with a list of rank paths, budget:4 (Clover-1), eagle2:60 (re-ranked), "
        "or drawn:clover2 (drawn from the draft). Left out: what --method says.",
    ),
]
Method = Annotated[
    Literal["auto", "draft", "plain"],
    typer.Option(
        rich_help_panel=_DECODING,
        help="auto chooses between trees, and none, while it runs, by what pays (see clover tune); draft always grows "
        "the same tree, which --tree also asks for; plain decodes with the target alone.",
    ),
]
Plain = Annotated[
    bool, typer.Option("--plain", rich_help_panel=_DECODING, help="Short for --method plain, the baseline.")
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        rich_help_panel=_DECODING,
        help="Let torch.compile have the decoding steps, on a GPU with CUDA graphs. The first steps then take minutes.",
    ),
]
MaxNewTokens = Annotated[
    int,
    typer.Option(metavar="N", min=1, rich_help_panel=_DECODING, help="Most tokens to generate per prompt."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", rich_help_panel=_DECODING, help="Stop before this text; may be given several times."
    ),
]

Temperature = Annotated[
    float,
    typer.Option(metavar="T", rich_help_panel=_SAMPLING, help="0 decodes greedily; 1 samples as trained."),
]
TopK = Annotated[
    int,
    typer.Option(
        metavar="K", rich_help_panel=_SAMPLING, help="Sample from the K likeliest tokens; 0 is all."
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        metavar="P", rich_help_panel=_SAMPLING, help="Sample from the likeliest tokens that sum to P."
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        metavar="P", rich_help_panel=_SAMPLING, help="Drop tokens less likely than P times the likeliest one."
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(metavar="R", rich_help_panel=_SAMPLING, help="Above 1: seen tokens become less likely."),
]
Seed = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=_SAMPLING, help="The same seed draws the same text.")
]

Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory to write; it appears, whole, when the work is done.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output directory if it exists.")]


def hide_loading_bars() -> None:
    """Keep transformers' bars for loading and saving weights off the terminal; downloads still show theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()
