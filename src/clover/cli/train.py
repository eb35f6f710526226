"""``clover train``: train a draft on a frozen target."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clover import options
from clover.cli.texts import TextOptions, has_written, write_anew
from clover.errors import UserError
from clover.files import check_output_directory
from clover.options import panel

if TYPE_CHECKING:
    from clover.data import Texts
    from clover.train import TrainConfig, TrainResult

# `TrainConfig` has the same options; an option that is left out keeps its default there.
_SAME = (
    "max_steps", "max_minutes", "epochs", "max_length", "batch_tokens", "step_tokens", "start_from", "seed", "dtype",
    "optimizer", "lr",
)  # fmt: skip

# Fewer held-out tokens are too few to report. In the target's greedy text, all tokens are its own first choice; below
# this share, the text has other authors, or was sampled far from the greedy choice.
_FEWEST, _OWN = 100, 0.7

_given, _bound, _training = panel(), panel("Duration"), panel("Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TextOptions):
    """The options of `clover train`."""

    features: Annotated[
        Path | None,
        _given("Stored hidden states from `clover features`, instead of --data.", metavar="DIR"),
    ] = None
    overwrite: options.Overwrite = False
    max_steps: Annotated[
        int | None,
        _bound("Maximum number of optimizer steps; 0 only fits the draft of --start-from to the data."),
    ] = None
    max_minutes: Annotated[
        float | None,
        _bound(
            "Maximum minutes of training, without the time of --regenerate (see --regenerate-minutes).",
            metavar="M",
        ),
    ] = None
    epochs: Annotated[float, _bound("Passes over the data if no other limit is given.", metavar="N")] = 4.0
    batch_tokens: Annotated[
        int | None,
        _training(
            "Tokens in a forward pass; fewer need less memory. Default: the target's hidden size on a CPU, between 512 "
            "and 1024; 4096 on a GPU."
        ),
    ] = None
    step_tokens: Annotated[
        int | None, _training("Minimum tokens in an optimizer step. Default: grows with the tokens learnt.")
    ] = None
    recipe: Annotated[
        str,
        _training(
            "default, or paper: the optimizer, learning rate, schedule, clipping, loss and starting values that the "
            "system's authors published. Other options override it.",
            metavar="NAME",
        ),
    ] = "default"
    optimizer: Annotated[
        str | None,
        _training(
            "muon (AdamW for parameters that are not matrices) or adamw. Default: set by the recipe or the system.",
            metavar="NAME",
        ),
    ] = None
    lr: Annotated[
        float | None,
        _training(
            "Peak learning rate. Default: set by the recipe, or 0.064 (adamw: 0.024) divided by the square root of the "
            "hidden size."
        ),
    ] = None
    start_from: Annotated[
        str | None,
        _training(
            "Trained draft to continue from, such as smollm2/recall; it keeps its system and its configuration. "
            "Default: a new draft.",
            metavar="DRAFT",
        ),
    ] = None
    system: Annotated[
        str | None,
        _training(
            "Draft system, such as recall, clover2 or medusa; an unknown name lists all. Default: the system of "
            "--start-from, or recall.",
            metavar="NAME",
        ),
    ] = None
    draft_options: Annotated[
        tuple[str, ...],
        _training(
            "Field of the system's configuration, such as mlp_ratio=2.0; may be given several times.",
            "--set",
            metavar="FIELD=VALUE",
        ),
    ] = ()
    loss: Annotated[
        str | None,
        _training(
            "default: the best loss for the system; distillation: the same loss for all systems; paper: the loss of "
            "the system's paper. Default: set by the recipe.",
            metavar="NAME",
        ),
    ] = None
    hidden_state: Annotated[
        str | None,
        _training(
            "Hidden states that the draft reads: post_norm, pre_norm or low_middle_high. Default: set by the system.",
            metavar="KIND",
        ),
    ] = None
    heads: Annotated[int | None, _training("Number of draft heads, one per token ahead.")] = None
    regression_weight: Annotated[
        float | None,
        _training("Weight of the regression to the target's hidden states.", metavar="W", min=0),
    ] = None
    likely_tokens_only: Annotated[
        bool | None, _training("Learn only at tokens that the target itself would probably emit.")
    ] = None


@options.takes_options
def train(given: TrainOptions) -> None:
    """Train a draft model for a frozen target."""
    from clover.data import FileTexts
    from clover.data.features import FeatureStore
    from clover.measure.report.progress import Progress
    from clover.train import prepare
    from clover.train import train as run_training

    if given.features is None and not given.files:
        raise UserError("there is nothing to learn from; give --data FILE, or --features DIR")
    if given.features is not None and (given.files or given.regenerate):
        raise UserError("--features has its own texts; leave out --data and --regenerate")
    config = _config(given)
    check_output_directory(given.output, given.overwrite)
    resume = _check_resume(config, given)
    model = given.load_target()
    opened = FeatureStore(given.features) if given.features is not None else given.open(model)
    with Progress() as progress:
        progress.say("making the draft")
        # The draft is made here so that errors appear before the target writes for hours.
        config, draft = prepare(config, model)
    learnt: FeatureStore | Texts = opened
    if given.regenerate and isinstance(opened, FileTexts):
        learnt, seconds = write_anew(given, model, opened, given.resume, finished=resume)
        config = replace(config, writing_seconds=seconds)
    result = run_training(config, model, learnt, draft, resume=resume, overwrite=given.overwrite)
    if isinstance(opened, FileTexts):
        options.print_left_out(opened.problems.values(), opened.looked_at)
    _report(given, config, result)


def _config(given: TrainOptions) -> "TrainConfig":
    """Return the training that the options describe, and print the settings of the recipe."""
    from clover.train import configure, named_recipe

    config = configure(
        str(given.output),
        given.system,
        given.recipe,
        given.loss,
        _present(given, "regression_weight", "likely_tokens_only"),
        _draft_options(given),
        target=given.target or "embedded",
        data=given.files or (str(given.features),),
        **_present(given, *_SAME),
    )
    if settings := named_recipe(given.recipe, config.system)[0]:
        values = {field: getattr(config, field) for field in settings} | config.draft | asdict(config.loss)
        shown = ", ".join(f"{field} {value}" for field, value in values.items())
        print(f"recipe {given.recipe}: {shown}", file=sys.stderr)
    return config


def _present(given: TrainOptions, *names: str) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name in names if (value := getattr(given, name)) is not None}


def _draft_options(given: TrainOptions) -> dict[str, Any]:
    from clover.train import draft_fields

    fields = draft_fields(given.draft_options)
    options = _present(given, "hidden_state") | ({} if given.heads is None else {"num_heads": given.heads})
    for name in sorted(fields.keys() & options.keys()):
        flag = "--heads" if name == "num_heads" else "--hidden-state"
        raise UserError(f"{flag} and --set {name}=… set the same option; leave one of them out")
    return fields | options


def _check_resume(config: "TrainConfig", given: TrainOptions) -> bool:
    """Return whether to resume a training; False if the run was interrupted before it, while the target wrote."""
    from clover.train import check_unfinished, checkpoint_path

    unfinished = given.resume and given.regenerate and not checkpoint_path(config).exists()
    if unfinished and has_written(given.output):
        return False
    check_unfinished(config, given.resume, given.overwrite)
    return given.resume


def _report(given: TrainOptions, config: "TrainConfig", result: "TrainResult") -> None:
    """Print the result of the training, and the next command."""
    if not result.finished:
        print(f"stopped after step {result.steps}, which is saved; --resume continues it", file=sys.stderr)
        raise typer.Exit(options.INTERRUPTED)
    measured = result.validation or result.training
    accuracy = " ".join(f"{value:.1%}" for value in measured["accuracy"])
    where = "held-out texts" if result.validation else "texts that it learnt, because too few were held out"
    count, first = int((measured.get("positions") or [0])[0]), measured["accuracy"][0]
    sure = f"± {(first * (1 - first) / count) ** 0.5:.1%}" if count >= _FEWEST else "too few to tell"
    done = f"trained {result.steps} steps on {result.tokens:,} tokens"
    if config.only_fits:
        done, where = f"fitted {config.start_from} to the texts", "them"
    print(
        f"{config.output}: {done}; accuracy of the heads {accuracy} on {count:,} tokens of {where} ({sure})"
    )
    tokens, own = measured.get("tau_tokens", 0), measured.get("tau_own_tokens", 0)
    if tokens >= _FEWEST:
        chain = f"τ {measured['tau']:.2f} (tokens per step) with a chain of {measured['chain']}, greedy"
        print(
            f"estimate: {chain}, along {tokens:,} tokens of {where}; {own / tokens:.0%} of them the target's own"
        )
    elif result.validation:
        print(f"estimate: none, because {tokens} held-out tokens are too few to tell τ")
    foreign = tokens >= _FEWEST and own < _OWN * tokens
    if foreign:
        print(
            f"the target itself would write another token at {1 - own / tokens:.0%} of these places, so the estimate "
            "is for text that is not its own; for its own text τ differs, and is often lower",
            file=sys.stderr,
        )
    if not (given.regenerate or given.features) and (foreign or tokens < _FEWEST):
        print(
            "the draft learnt the answers in the data; unless the target wrote them, its own would teach more; "
            "--regenerate lets it write them",
            file=sys.stderr,
        )
    why = "which τ it has in use" if tokens else "how many tokens of a step are accepted"
    print(options.next_command(why, "evaluate", given, "--draft", config.output), file=sys.stderr)
