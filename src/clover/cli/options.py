"""What several commands share: options, each with its one name, type and help text, and exit codes."""

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

USER_ERROR, INTERRUPTED = 2, 130  # exit codes


def panel(name: str | None = None) -> Callable[..., Any]:
    """Return what makes options of a panel of the help: of the help text, names where they differ, and the rest."""

    def option(help_text: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=help_text, rich_help_panel=name, **settings)

    return option


_other, _models, _decoding, _sampling = panel(), panel("Models"), panel("Decoding"), panel("Sampling")

Target = Annotated[
    str | None,
    _models(
        "Target model: a directory or a name on the Hugging Face hub. Left out: the embedded one.",
        metavar="NAME|DIR",
    ),
]
Draft = Annotated[
    str | None,
    _models(
        "Draft trained for the target: a directory, a name on the hub, or lookup (n-grams, nothing to train). "
        "Left out, with --target left out too: the embedded one.",
        metavar="NAME|DIR",
    ),
]
Dtype = Annotated[
    str | None,
    _models(
        "float32, bfloat16, float16 or float64. Left out: float32 on a CPU, bfloat16 on a GPU.",
        metavar="DTYPE",
    ),
]
Device = Annotated[
    str | None, _models("cpu, cuda, cuda:1, … Left out: a GPU where there is one.", metavar="DEVICE")
]
TrustRemoteCode = Annotated[bool, _models("Run model code that the hub delivers.", "--trust-remote-code")]

Tree = Annotated[
    str | None,
    _decoding(
        "Token tree to verify: clover2 (25 nodes), medusa (63), chain:5, chain:12:0.06 (ends where the "
        "draft is unsure), a JSON file with a list of rank paths, budget:4 (Clover-1), eagle2:60 (re-ranked), "
        "or drawn:clover2 (drawn from the draft). Left out: what --method says.",
        metavar="TREE",
    ),
]
Method = Annotated[
    Literal["auto", "draft", "plain"],
    _decoding(
        "auto chooses between trees, and none, while it runs, by what pays (see clover tune); draft always grows "
        "the same tree, which --tree also asks for; plain decodes with the target alone."
    ),
]
Plain = Annotated[bool, _decoding("Short for --method plain, the baseline.", "--plain")]
Compile = Annotated[
    bool,
    _decoding(
        "Let torch.compile have the decoding steps, on a GPU with CUDA graphs. The first steps then take minutes.",
        "--compile",
    ),
]
MaxNewTokens = Annotated[int, _decoding("Most tokens to generate per prompt.", metavar="N", min=1)]
Stop = Annotated[
    list[str] | None, _decoding("Stop before this text; may be given several times.", metavar="TEXT")
]

Temperature = Annotated[float, _sampling("0 decodes greedily; 1 samples as trained.", metavar="T")]
TopK = Annotated[int, _sampling("Sample from the K likeliest tokens; 0 is all.", metavar="K")]
TopP = Annotated[float, _sampling("Sample from the likeliest tokens that sum to P.", metavar="P")]
MinP = Annotated[float, _sampling("Drop tokens less likely than P times the likeliest one.", metavar="P")]
RepetitionPenalty = Annotated[float, _sampling("Above 1: seen tokens become less likely.", metavar="R")]
Seed = Annotated[
    int, _sampling("The same seed draws the same text.", metavar="N", min=-(2**63), max=2**63 - 1)
]

Output = Annotated[
    Path, _other("Directory to write; it appears, whole, when the work is done.", metavar="DIR")
]
Json = Annotated[
    Path | None,
    _other("Write the metrics as JSON; - writes them to standard output.", "--json", metavar="FILE"),
]
Html = Annotated[Path | None, _other("Write one HTML page.", "--html", metavar="FILE")]
Overwrite = Annotated[bool, _other("Replace the output directory if it exists.", "--overwrite")]


def hide_loading_bars() -> None:
    """Keep transformers' bars for loading and saving weights off the terminal; downloads still show theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def tell_left_out(problems: Collection[str]) -> None:
    """Say how many texts could not be used, and why the first could not."""
    if problems:
        print(f"left out {len(problems)} texts; the first: {next(iter(problems))}", file=sys.stderr)
