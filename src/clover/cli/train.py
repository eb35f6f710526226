"""``clover train``: train a draft on a frozen target."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clover.cli import options
from clover.errors import UserError
from clover.files import check_output_directory

if TYPE_CHECKING:
    from clover.data import Sample
    from clover.target import TargetModel
    from clover.train import TrainConfig, TrainResult

INTERRUPTED = 130
_BOUNDS, _TRAINING = "How long", "Training"

Data = Annotated[
    list[str],
    typer.Option(
        metavar="FILE...", help="Training texts: .txt, .jsonl, .json or .parquet; several may follow."
    ),
]
MoreData = Annotated[list[str] | None, typer.Argument(metavar="FILE", help="More files of --data.")]
Regenerate = Annotated[
    bool,
    typer.Option(
        "--regenerate", help="First let the target write the answers itself, in place of the data's."
    ),
]
RegenerateMinutes = Annotated[
    float | None,
    typer.Option(metavar="M", min=0, help="Stop writing after this time, with the texts there are."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the interrupted run of this output directory.")
]
MaxSteps = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=_BOUNDS, help="Optimizer steps.")]
MaxMinutes = Annotated[
    float | None, typer.Option(metavar="M", rich_help_panel=_BOUNDS, help="Minutes of training.")
]
Epochs = Annotated[
    float,
    typer.Option(metavar="N", rich_help_panel=_BOUNDS, help="Passes over the data if neither is given."),
]
MaxLength = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=_TRAINING, help="Longest text, in tokens.")
]
BatchTokens = Annotated[
    int,
    typer.Option(
        metavar="N", rich_help_panel=_TRAINING, help="Tokens of a forward pass; less takes less memory."
    ),
]
Accumulation = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=_TRAINING, help="Forward passes per optimizer step.")
]
LearningRate = Annotated[float, typer.Option("--lr", rich_help_panel=_TRAINING, help="Peak learning rate.")]
HiddenState = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        rich_help_panel=_TRAINING,
        help="Hidden states the draft reads: post_norm or pre_norm.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        rich_help_panel=_TRAINING,
        help="bf16 or fp32. Left out: bf16 on a GPU, fp32 on a CPU.",
    ),
]


def train(
    data: Data,
    output: options.Output,
    more_data: MoreData = None,
    regenerate: Regenerate = False,
    regenerate_minutes: RegenerateMinutes = None,
    resume: Resume = False,
    overwrite: options.Overwrite = False,
    target: options.Target = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    max_steps: MaxSteps = None,
    max_minutes: MaxMinutes = None,
    epochs: Epochs = 4.0,
    max_length: MaxLength = 2048,
    batch_tokens: BatchTokens = 8192,
    accumulation: Accumulation = 1,
    lr: LearningRate = 1e-3,
    hidden_state: HiddenState = "post_norm",
    dtype: Dtype = None,
    seed: options.Seed = 0,
) -> None:
    """Train a Clover-2 draft for a target that stays as it is."""
    from clover.train import TrainConfig

    config = TrainConfig(
        output=str(output),
        target=target or "embedded",
        data=(*data, *(more_data or ())),
        draft={"hidden_state": hidden_state},
        max_length=max_length,
        batch_tokens=batch_tokens,
        accumulation=accumulation,
        max_steps=max_steps,
        max_minutes=max_minutes,
        epochs=epochs,
        lr=lr,
        dtype=dtype,
        seed=seed,
    )
    check_output_directory(output, overwrite)
    options.hide_loading_bars()
    model = _load_target(target, dtype, device, trust_remote_code)
    samples = _read_samples(model, config, regenerate)
    if regenerate:
        samples = _write_anew(model, samples, config, regenerate_minutes)
    _report(config, _train(model, samples, config, resume, overwrite))


def _load_target(
    name: str | None, dtype: str | None, device: str | None, trust_remote_code: bool
) -> "TargetModel":
    from clover.assets import TARGET
    from clover.target import TargetModel

    return TargetModel.load(
        name or str(TARGET), dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )


def _read_samples(target: "TargetModel", config: "TrainConfig", stand_ins: bool) -> "Sequence[Sample]":
    from clover.data import read_samples

    if target.tokenizer is None:
        raise UserError(f"the target {config.target} has no tokenizer, which training texts need")
    texts = read_samples(config.data, target.tokenizer, target.eos_token_ids, stand_ins=stand_ins)
    if texts.skipped:
        print(f"left out {texts.skipped} texts; the first: {texts.first_problem}", file=sys.stderr)
    return texts.samples


def _write_anew(
    target: "TargetModel", samples: "Sequence[Sample]", config: "TrainConfig", minutes: float | None
) -> "Sequence[Sample]":
    """Let the target write the answers into a file beside the output; a file that is there is continued."""
    from rich.console import Console

    from clover.data import fingerprint
    from clover.regenerate import RegenerateConfig, read_regenerated, regenerate

    # The name depends on the texts, so that a run on other data never takes this one's answers.
    path = Path(f"{config.output.rstrip('/')}.{fingerprint(samples)[:8]}.regenerated.jsonl")
    if config.work_directory.exists() and path.exists():
        return read_regenerated(path)  # the training that has begun on them goes on with the same ones
    rules = RegenerateConfig(max_length=config.max_length, max_minutes=minutes, seed=config.seed)
    if path.exists():
        print(f"goes on from the texts in {path}; delete it to write all anew", file=sys.stderr)
    with Console(stderr=True).status("the target writes …") as status:

        def show(texts: int, tokens: int) -> None:
            status.update(f"the target writes: {texts} of {len(samples)} texts, {tokens:,} tokens")

        return regenerate(target, samples, rules, path, show)


def _train(
    target: "TargetModel", samples: "Sequence[Sample]", config: "TrainConfig", resume: bool, overwrite: bool
) -> "TrainResult":
    import torch

    from clover.drafts import Clover2Draft
    from clover.train import train as run_training

    torch.manual_seed(config.seed)  # the starting values are drawn at random
    draft = Clover2Draft.from_target(target, **config.draft)
    return run_training(config, target, samples, draft, resume=resume, overwrite=overwrite)


def _report(config: "TrainConfig", result: "TrainResult") -> None:
    if not result.finished:
        print(f"stopped after step {result.steps}; --resume goes on from there", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    measured = result.validation or result.training
    accuracy = " ".join(f"{value:.1%}" for value in measured["accuracy"])
    print(
        f"{config.output}: trained {result.steps} steps on {result.tokens:,} tokens; accuracy of the heads {accuracy}"
    )
