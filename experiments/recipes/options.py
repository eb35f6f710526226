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
        typer.Option(metavar="DIR", help="What the stages hand over; an interrupted run goes on here."),
    ] = None
    minutes: Annotated[
        float, typer.Option(metavar="M", min=0.1, help="Time for all training and writing.")
    ] = 240.0
    device: options.Device = None
    overwrite: options.Overwrite = False
    keep_target: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output of an earlier run: keep its target, renew the drafts alone."
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
        Path, typer.Option(metavar="DIR", help="Directory in which each draft appears when it is finished.")
    ]
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Texts and hidden states; a stopped run goes on here. Left out: OUTPUT.work.",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts as for clover train, each row with a licence; rows of other than permissive licence are "
            "left out. Left out: the target writes all prompts itself.",
        ),
    ] = None
    own_prompts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Prompts that the target writes itself. Left out: half of TEXTS, or all of them without --prompts.",
        ),
    ] = None
    target: Annotated[
        str, typer.Option(metavar="NAME|DIR", help="Another chat model, such as a GGUF file or a directory.")
    ] = "smollm2"
    tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Tokens that every draft is trained on; other --tokens need another --output.",
        ),
    ] = 1_500_000
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Prompts that the target answers, at most.")
    ] = 5_000
    max_length: Annotated[
        int, typer.Option(metavar="N", min=8, help="Tokens of a prompt and its answer at most.")
    ] = 512
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Answers that the target writes together.")
    ] = 64
    systems: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME[:FIELD=VALUE,…]",
            help="Draft system to train, or an ablation of one, such as clover1:connection=none; may be given several "
            "times. Left out: recall, clover2, clover1, medusa, eagle and eagle3.",
        ),
    ] = ()
    recipes: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="NAME",
            help="default or paper, as for clover train; may be given several times. Left out: default for all, then "
            "paper for clover1, clover2 and eagle.",
        ),
    ] = ()
    seeds: Annotated[
        tuple[int, ...],
        typer.Option(
            metavar="N",
            min=0,
            max=2**62,
            help="May be given several times. Left out: 0, and 1 of recall, clover2 and eagle.",
        ),
    ] = ()
    dtype: Annotated[
        str,
        typer.Option(metavar="DTYPE", help="bfloat16 or float32: of the target, its states and the drafts."),
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
        typer.Option(metavar="NAME|DIR", help="The target that it was trained for, with the same weights."),
    ]
    name: Annotated[
        str,
        typer.Option(metavar="NAME", help="What the model is called, such as Qwen2.5-Coder-1.5B-Instruct."),
    ]
    model_licence: Annotated[str, typer.Option(metavar="NAME", help="The model's licence.")]
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory to write, such as drafts/coder/clover_drafts_coder/1.5b."
        ),
    ]
    data: Annotated[
        tuple[Path, ...],
        typer.Option(
            metavar="FILE",
            help="Texts of the training, each row with source and licence; may be given several times.",
        ),
    ] = ()
    taus: Annotated[
        tuple[Path, ...],
        typer.Option(metavar="FILE", help="What clover evaluate --json wrote; may be given several times."),
    ] = ()
    notes: Annotated[
        tuple[str, ...],
        typer.Option(metavar="TEXT", help="A paragraph for the card; may be given several times."),
    ] = ()
    overwrite: options.Overwrite = False
