"""``clover train``: train a draft on a frozen target."""

import json
import shlex
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clover import options
from clover.cli import texts
from clover.cli.texts import has_written, load_target, open_texts, write_anew, written_path
from clover.errors import UserError
from clover.files import check_output_directory
from clover.options import panel

if TYPE_CHECKING:
    from clover.data import FileTexts, Sample
    from clover.drafts import LossConfig
    from clover.features import FeatureStore
    from clover.target import TargetModel
    from clover.train import TrainConfig, TrainResult

_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}

_given, _bound, _training = panel(), panel("How long"), panel("Training")
Data = Annotated[
    list[str] | None,
    _given("Training texts: .txt, .jsonl, .json or .parquet; several may follow.", metavar="FILE..."),
]
Features = Annotated[
    Path | None,
    _given("In place of --data: hidden states that clover features has stored.", metavar="DIR"),
]
Resume = Annotated[
    bool, _given("Go on with the interrupted writing or training of this output directory.", "--resume")
]
MaxSteps = Annotated[int | None, _bound("Optimizer steps.", metavar="N")]
MaxMinutes = Annotated[
    float | None,
    _bound(
        "Minutes of training alone; --regenerate comes before it and is bounded by --regenerate-minutes.",
        metavar="M",
    ),
]
Epochs = Annotated[float, _bound("Passes over the data if neither is given.", metavar="N")]
MaxLength = Annotated[int, _training("Longest text, in tokens.", metavar="N")]
BatchTokens = Annotated[
    int | None,
    _training(
        "Tokens of a forward pass; less takes less memory. Left out: 512 on a CPU, 4096 on a GPU.",
        metavar="N",
    ),
]
StepTokens = Annotated[
    int | None,
    _training("Tokens of an optimizer step at least. Left out: it grows with what is learnt.", metavar="N"),
]
Recipe = Annotated[
    str,
    _training(
        "default, or paper: optimizer, rate, schedule, clipping, loss and start as the system's authors publish "
        "them. What is given beside it wins.",
        metavar="NAME",
    ),
]
Optimizer = Annotated[
    str | None,
    _training(
        "muon (AdamW for what is no matrix), which learns more from the same text and is the default, or adamw, as "
        "in the paper.",
        metavar="NAME",
    ),
]
LearningRate = Annotated[
    float | None, _training("Peak learning rate. Left out: the recipe's, 0.004 by default.", "--lr")
]
HiddenState = Annotated[
    str | None,
    _training(
        "Hidden states to read: post_norm, pre_norm or low_middle_high. Left out: the system's own choice.",
        metavar="KIND",
    ),
]
System = Annotated[
    str, _training("Draft system: recall, clover2, clover1, medusa, eagle, eagle3 or hydra.", metavar="NAME")
]
DraftOption = Annotated[
    list[str] | None,
    _training(
        "A field of the system's configuration, such as mlp_ratio=2.0; may be given several times.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Loss = Annotated[
    str | None,
    _training(
        "default, what the system learns best by; distillation, the same for all systems; or paper, that of the "
        "system's own paper. Left out: the recipe's.",
        metavar="NAME",
    ),
]
Heads = Annotated[int | None, _training("Heads of the draft: tokens it looks ahead.", metavar="N")]
RegressionWeight = Annotated[
    float | None,
    _training("Weight of the loss that draws hidden states to the target's.", metavar="W", min=0),
]
LikelyTokensOnly = Annotated[
    bool | None,
    _training(
        "Learn only where the text is one that the target itself might have written.", "--likely-tokens-only"
    ),
]
Dtype = Annotated[
    str | None,
    _training(
        "bfloat16 (bf16) or float32 (fp32). Left out: the one in which this machine multiplies faster.",
        metavar="DTYPE",
    ),
]


def train(
    output: options.Output,
    data: Data = None,
    more_data: texts.MoreData = None,
    features: Features = None,
    regenerate: texts.Regenerate = False,
    regenerate_minutes: texts.RegenerateMinutes = None,
    batch_size: texts.BatchSize = 64,
    resume: Resume = False,
    overwrite: options.Overwrite = False,
    target: options.Target = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    max_steps: MaxSteps = None,
    max_minutes: MaxMinutes = None,
    epochs: Epochs = 4.0,
    max_length: MaxLength = 2048,
    batch_tokens: BatchTokens = None,
    step_tokens: StepTokens = None,
    recipe: Recipe = "default",
    optimizer: Optimizer = None,
    lr: LearningRate = None,
    system: System = "recall",
    draft_option: DraftOption = None,
    loss: Loss = None,
    hidden_state: HiddenState = None,
    heads: Heads = None,
    regression_weight: RegressionWeight = None,
    likely_tokens_only: LikelyTokensOnly = None,
    dtype: Dtype = None,
    seed: options.Seed = 0,
) -> None:
    """Train a draft for a target that stays as it is."""
    from clover.train import TrainConfig

    chosen: dict[str, Any] = {"output": str(output), "target": target or "embedded", "seed": seed}
    files = (*(data or ()), *(more_data or ()))
    _check_source(files, features, regenerate)
    chosen |= {"data": files or (str(features),), "dtype": _DTYPES.get(dtype or "", dtype)}
    chosen |= {"max_steps": max_steps, "max_minutes": max_minutes, "epochs": epochs, "max_length": max_length}
    chosen |= {"batch_tokens": batch_tokens, "step_tokens": step_tokens, "system": system}
    settings, fields = _recipe(recipe, system)
    chosen |= settings | _present(optimizer=optimizer, lr=lr)
    chosen["draft"] = fields | _draft_options(draft_option, hidden_state, heads)
    weights = _present(regression_weight=regression_weight, likely_tokens_only=likely_tokens_only)
    config = TrainConfig(**chosen, loss=_loss(loss or recipe, system, weights))
    _show_recipe(recipe, config, settings)
    rewriting = _present(max_minutes=regenerate_minutes, batch_size=batch_size) if regenerate else None
    place = (target, dtype, device, trust_remote_code)
    _run(config, place, features, rewriting, resume, overwrite)


def _run(
    config: "TrainConfig",
    place: tuple[str | None, str | None, str | None, bool],
    features: Path | None,
    rewriting: dict[str, Any] | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Train on stored hidden states, on the data, or on what the target writes itself by `rewriting`."""
    from clover.features import FeatureStore
    from clover.regenerate import RegenerateConfig

    check_output_directory(config.output, overwrite)
    resume_training = _check_resume(config, rewriting is not None, resume, overwrite)
    if features is not None:
        result = _train(load_target(*place), FeatureStore(features), config, resume_training, overwrite)
        _report(config, result)
        return
    model = load_target(*place)
    opened = open_texts(model, config.data, rewriting is not None)
    learnt: FileTexts | list[Sample] = opened
    if rewriting is not None:
        rules = RegenerateConfig(max_length=config.max_length, seed=config.seed, **rewriting)
        path = written_path(model, opened, rules, Path(config.output))
        found = write_anew(model, opened, rules, path, resume, resume_training)
        learnt, config = found.samples, replace(config, writing_seconds=found.seconds)
    result = _train(model, learnt, config, resume_training, overwrite)
    options.tell_left_out(opened.problems.values())
    _report(config, result)


def _check_source(data: Collection[str], features: Path | None, regenerate: bool) -> None:
    if features is None and not data:
        raise UserError("there is nothing to learn from: give --data, or --features")
    if features is not None and (data or regenerate):
        raise UserError("--features holds its own texts; leave --data and --regenerate out")


def _present(**values: Any) -> dict[str, Any]:
    """What the user gave; the rest keeps the default it has where it is used."""
    return {name: value for name, value in values.items() if value is not None}


def _draft_options(given: list[str] | None, hidden_state: str | None, heads: int | None) -> dict[str, Any]:
    """Fields of a draft's configuration from FIELD=VALUE; values are JSON where they can be, else strings."""
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise UserError(f"--set {text!r} must be FIELD=VALUE, such as mlp_ratio=2.0")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found | _present(hidden_state=hidden_state, num_heads=heads)


def _recipe(name: str, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a recipe sets: of the training, and of the draft's configuration."""
    from clover.drafts.loading import trainable_system

    if name not in ("default", "paper"):
        raise UserError(f"--recipe is {name!r}; it must be default or paper")
    paper = trainable_system(system).paper_recipe
    if name == "default":
        return {}, {}
    if paper is None:
        raise UserError(f"the recipe of {system}'s paper is not known; leave --recipe out")
    settings = {
        "optimizer": "adamw",
        "lr": paper.lr,
        "betas": paper.betas,
        "weight_decay": paper.weight_decay,
    }
    settings |= {"schedule": paper.schedule, "warm_up": 0.0, "warm_up_steps": paper.warm_up_steps or None}
    return settings | {"clip": None, "clip_value": paper.clip_value}, {
        "draft_vocab_size": None,
        **paper.options,
    }


def _show_recipe(name: str, config: "TrainConfig", settings: dict[str, Any]) -> None:
    """Show every value that a recipe has set, as the options beside it have left it."""
    if settings:
        values = {field: getattr(config, field) for field in settings} | config.draft | asdict(config.loss)
        shown = ", ".join(f"{field} {value}" for field, value in values.items())
        print(f"recipe {name}: {shown}", file=sys.stderr)


def _loss(name: str, system: str, weights: dict[str, Any]) -> "LossConfig":
    from clover.drafts.loading import trainable_system
    from clover.losses import LossConfig

    kind = trainable_system(system)
    losses = {"default": kind.default_loss, "distillation": LossConfig(), "paper": kind.paper_loss}
    if name not in losses:
        raise UserError(f"--loss is {name!r}; it must be {', '.join(losses)}")
    return replace(losses[name], **weights)


def _check_resume(config: "TrainConfig", regenerate: bool, resume: bool, overwrite: bool) -> bool:
    """Say whether a training is to be resumed: of a run that was interrupted while it wrote, none has begun."""
    from clover.train import check_unfinished, checkpoint_path

    if resume and regenerate and not checkpoint_path(config).exists() and has_written(Path(config.output)):
        return False
    check_unfinished(config, resume, overwrite)
    return resume


def _train(
    target: "TargetModel",
    texts: "FileTexts | FeatureStore | list[Sample]",
    config: "TrainConfig",
    resume: bool,
    overwrite: bool,
) -> "TrainResult":
    import torch

    from clover.drafts.loading import trainable_system
    from clover.drafts.vocabulary import default_size
    from clover.train import train as run_training

    size = default_size(target.vocab_size)
    if "draft_vocab_size" not in config.draft and size is not None:
        config = replace(config, draft=config.draft | {"draft_vocab_size": size})
    torch.manual_seed(config.seed)  # the starting values are drawn at random
    draft = trainable_system(config.system).from_target(target, **config.draft)
    return run_training(config, target, texts, draft, resume=resume, overwrite=overwrite)


def _report(config: "TrainConfig", result: "TrainResult") -> None:
    if not result.finished:
        print(f"stopped after step {result.steps}; --resume goes on from there", file=sys.stderr)
        raise typer.Exit(options.INTERRUPTED)
    measured = result.validation or result.training
    accuracy = " ".join(f"{value:.1%}" for value in measured["accuracy"])
    print(
        f"{config.output}: trained {result.steps} steps on {result.tokens:,} tokens; accuracy of the heads {accuracy}"
    )
    named = () if config.target == "embedded" else ("--target", config.target)
    command = shlex.join(["clover", "cost", *named, "--draft", config.output])
    print(f"what it took, and when it has paid for itself: {command}", file=sys.stderr)
