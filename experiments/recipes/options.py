"""What the user of the recipe chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from clover import options
from clover.files import append_to_name


@dataclass(frozen=True)
class RecipeOptions:
    """The options of `python -m experiments.recipes embedded`."""

    output: options.Output
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of intermediate results; a run continues from them. Default: OUTPUT.work.",
        ),
    ] = None
    minutes: Annotated[
        float, typer.Option(metavar="M", min=0.1, help="Minutes for all training and writing.")
    ] = 240.0
    device: options.Device = None
    overwrite: options.Overwrite = False
    keep_target: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output of an earlier run: keep its target, and train only new drafts."
        ),
    ] = None

    @property
    def folder(self) -> Path:
        """Return the work directory; it is kept, so that the run can go on or be looked at."""
        return self.work or append_to_name(self.output, ".work")

    @property
    def command(self) -> str:
        """Return the command that repeats the run, for the card."""
        kept = "" if self.keep_target is None else " --keep-target DIR"
        return f"python -m experiments.recipes embedded --output DIR --minutes {self.minutes:g}{kept}"


@dataclass(frozen=True)
class ChatRecipeOptions:
    """The options of `python -m experiments.recipes smollm2`."""

    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Output directory; each draft is written when it is finished.")
    ]
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of texts and hidden states; a run continues from them. Default: OUTPUT.work.",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts, as for clover train, with a licence in each row; rows without a permissive licence "
            "are skipped. Default: the target writes all prompts.",
        ),
    ] = None
    apart: Annotated[
        tuple[Path, ...],
        typer.Option(
            metavar="FILE",
            help="File of prompts for evaluation; those of --prompts that share eight words in a row with one of them "
            "are skipped; may be given several times.",
        ),
    ] = ()
    own_prompts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of prompts that the target writes. Default: half of --texts; without --prompts, all.",
        ),
    ] = None
    target: Annotated[
        str, typer.Option(metavar="NAME|DIR", help="Chat model, such as a directory or a GGUF file.")
    ] = "smollm2"
    tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Training tokens of each draft; another number needs another --output.",
        ),
    ] = 1_500_000
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of prompts that the target answers.")
    ] = 5_000
    max_length: Annotated[
        int, typer.Option(metavar="N", min=8, help="Maximum number of tokens of a prompt and its answer.")
    ] = 512
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Answers that the target writes in one batch.")
    ] = 64
    systems: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME[:FIELD=VALUE,…]",
            help="Draft system to train, or an ablation of one, such as clover1:connection=none; may be given several "
            "times. Default: recall, clover2, clover1, medusa, eagle and eagle3.",
        ),
    ] = ()
    recipes: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME",
            help="default or paper, as for clover train; may be given several times. Default: default for all systems, "
            "and paper also for clover1, clover2 and eagle.",
        ),
    ] = ()
    seeds: Annotated[
        tuple[int, ...],
        typer.Option(
            metavar="N",
            min=0,
            max=2**62,
            help="Random seed; may be given several times. Default: 0, and 1 also for recall, clover2 and eagle.",
        ),
    ] = ()
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="dtype of the target, its states and the drafts: bfloat16 or float32."
        ),
    ] = "bfloat16"
    device: options.Device = None

    @property
    def own(self) -> int:
        """Prompts that the target writes itself."""
        if self.own_prompts is not None:
            return min(self.own_prompts, self.texts)
        return self.texts if self.prompts is None else self.texts // 2

    @property
    def folder(self) -> Path:
        """Return the work directory."""
        return self.work or append_to_name(self.output, ".work")


@dataclass(frozen=True)
class ReleaseOptions:
    """The options of `python -m experiments.recipes release`."""

    draft: Annotated[Path, options.argument("Directory of a trained draft.", metavar="DRAFT")]
    target: Annotated[
        str,
        typer.Option(metavar="NAME|DIR", help="Target of the training, with the same weights."),
    ]
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="Name of the model, such as Qwen2.5-Coder-1.5B-Instruct."),
    ]
    model_licence: Annotated[str, typer.Option(metavar="NAME", help="Licence of the model.")]
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Output directory, such as drafts/coder/clover_drafts_coder/1.5b."),
    ]
    data: Annotated[
        tuple[Path, ...],
        typer.Option(
            metavar="FILE",
            help="Training texts with source and licence in each row; may be given several times.",
        ),
    ] = ()
    taus: Annotated[
        tuple[Path, ...],
        typer.Option(metavar="FILE", help="Output of clover evaluate --json; may be given several times."),
    ] = ()
    notes: Annotated[
        tuple[str, ...],
        typer.Option(metavar="TEXT", help="Paragraph for the card; may be given several times."),
    ] = ()
    overwrite: options.Overwrite = False
