"""The options of the commands that measure, see `clover.options.takes_options`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from clover import options
from clover.options import argument, option

_money = options.panel("Training cost")

FewerTokens = Annotated[
    int | None,
    option(
        "Maximum number of new tokens per prompt. Default: 96 (evaluate: 128), down to 24 for a slow target.",
        min=1,
    ),
]


@dataclass(frozen=True)
class BenchOptions(options.ModelOptions):
    """The options of `clover bench`; every method runs at each pair of batch size and temperature."""

    model: Annotated[str | None, argument("Another way to give --target.", metavar="TARGET")] = None
    draft: options.Draft = None
    prompts: options.Prompts = None
    batch_sizes: options.BatchSizes = (1,)
    temperatures: options.Temperatures = (0.0,)
    trees: options.Trees = ()
    assistant: Annotated[
        str | None, option("Small model for assisted generation in transformers.", metavar="NAME|DIR")
    ] = None
    rounds: Annotated[
        int, option("Maximum number of rounds; in each round, every method decodes all prompts.", min=1)
    ] = 5
    max_new_tokens: FewerTokens = None
    max_prompts: Annotated[int, option("Maximum number of prompts; larger batches repeat them.", min=1)] = 8
    max_minutes: options.MaxMinutes = 2.0
    no_reference: Annotated[bool, option("Do not measure `generate` of transformers.")] = False
    compile: options.Compile = False
    json: options.Json = None
    picture: options.Picture = None


@dataclass(frozen=True)
class DemoOptions(options.ModelOptions):
    """The options of `clover demo`."""

    drafts: Annotated[
        tuple[str, ...],
        option(
            "Draft model for the target; may be given several times. Default: the drafts of the package.",
            metavar="NAME|DIR",
        ),
    ] = ()
    tree: options.Tree = None
    prompts: options.Prompts = None
    max_new_tokens: FewerTokens = None
    max_minutes: options.MaxMinutes = 2.0
    temperature: options.SampledTemperature = 0.8
    picture: Annotated[Path, option("File of the plot: .png, .pdf or .svg.")] = Path("demo.png")
    json: options.Json = None
    quiet: Annotated[bool, option("Show only the table.")] = False


@dataclass(frozen=True)
class EvaluateOptions(options.ModelOptions):
    """The options of `clover evaluate`; each tree is measured at each temperature."""

    files: Annotated[
        tuple[str, ...],
        argument(
            "Files of prompts: Spec-Bench, MT-bench, HumanEval, GSM8K, other .json and .jsonl, .txt with one per line; "
            ".py and other texts are cut into prompts. Default: held-out code; for smollm2, questions of MT-bench.",
            metavar="FILE",
        ),
    ] = ()
    draft: options.Draft = None
    trees: options.Trees = ()
    temperatures: options.Temperatures = (0.0, 1.0)
    max_new_tokens: FewerTokens = None
    max_prompts: options.MaxPrompts = 24
    batch_size: options.BatchSize = 8
    by_position: Annotated[bool, option("Show τ by position in the text.")] = False
    no_copies: Annotated[bool, option("Measure the draft without copying from the text.")] = False
    details: Annotated[bool, option("Show the draft's accuracy at each depth.")] = False
    max_minutes: options.MaxMinutes = 2.0
    seed: options.Seed = 0
    json: options.Json = None


@dataclass(frozen=True)
class TuneOptions(options.ModelOptions):
    """The options of `clover tune`."""

    files: options.Files = ()
    draft: options.Draft = None
    batch_sizes: options.BatchSizes = (1, 2, 4, 8, 16)
    temperature: options.Temperature = 0.0
    max_new_tokens: options.MaxNewTokens = 128
    max_prompts: options.MaxPrompts = 24
    max_minutes: options.MaxMinutes = 2.0
    seed: options.Seed = 0
    output: Annotated[
        Path | None, option("Output file. Default: tuning.json in your draft's directory; for vllm, none.")
    ] = None
    json: options.Json = None
    for_: Annotated[Literal["clover", "vllm"], option("Engine that will run the draft.", "--for")] = "clover"
    costs: Annotated[
        Path | None,
        option(
            "For vllm: step times from python -m clover.integrations.vllm.costs. Default: measured on this machine."
        ),
    ] = None


@dataclass(frozen=True)
class CostOptions(options.ModelOptions):
    """The options of `clover cost`: a draft system on a target, or a trained draft."""

    prompts: options.Files = ()
    draft: Annotated[
        str | None,
        option("Trained draft. Default: a draft of --system with random weights.", metavar="NAME|DIR"),
    ] = None
    system: Annotated[
        str | None,
        option("Draft system of an untrained draft, as for `clover train`. Default: recall.", metavar="NAME"),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        option("Size of the draft's vocabulary (`clover train --set draft_vocab_size=N`).", min=1),
    ] = None
    trees: options.Trees = ()
    batch_sizes: options.BatchSizes = (1, 4, 16)
    taus: Annotated[
        tuple[float, ...],
        option("Predict the speed-up at this τ; may be given several times.", metavar="T", min=1),
    ] = ()
    minutes: Annotated[
        float | None, _money("Minutes of training. Default: those of --draft.", metavar="M", min=0)
    ] = None
    price: Annotated[float | None, _money("Price per hour of the training machine.", metavar="P", min=0)] = (
        None
    )
    serving_price: Annotated[
        float | None, _money("Price per hour of the decoding machine. Default: --price.", metavar="P", min=0)
    ] = None
    max_new_tokens: options.MaxNewTokens = 128
    max_minutes: options.MaxMinutes = 1.25
    seed: options.Seed = 0
    json: options.Json = None
