"""The options of the commands that measure, see `clover.options.takes_options`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from clover import options
from clover.options import argument, option

_money = options.panel("Training and money")

FewerTokens = Annotated[
    int | None,
    option(
        "Most tokens to generate per prompt. Left out: 96 (evaluate: 128), or as few as 24 on a slow target.",
        min=1,
    ),
]


@dataclass(frozen=True)
class BenchOptions(options.ModelOptions):
    """The options of `clover bench`; every method runs at each pair of batch size and temperature."""

    model: Annotated[str | None, argument("The same as --target.", metavar="TARGET")] = None
    draft: options.Draft = None
    prompts: options.Prompts = None
    batch_sizes: options.BatchSizes = (1,)
    temperatures: options.Temperatures = (0.0,)
    trees: options.Trees = ()
    assistant: Annotated[
        str | None, option("Small model for transformers' assisted generation.", metavar="NAME|DIR")
    ] = None
    rounds: Annotated[
        int, option("Most rounds, in each of which every method decodes all prompts.", min=1)
    ] = 5
    max_new_tokens: FewerTokens = None
    max_prompts: Annotated[int, option("Most prompts; larger batches take them again.", min=1)] = 8
    max_minutes: options.MaxMinutes = 2.0
    no_reference: Annotated[bool, option("Leave transformers' own `generate` out.")] = False
    compile: options.Compile = False
    json: options.Json = None
    picture: options.Picture = None


@dataclass(frozen=True)
class DemoOptions(options.ModelOptions):
    """The options of `clover demo`."""

    drafts: Annotated[
        tuple[str, ...],
        option(
            "Draft trained for the target; may be given several times. Left out: the package's.",
            metavar="NAME|DIR",
        ),
    ] = ()
    tree: options.Tree = None
    prompts: options.Prompts = None
    max_new_tokens: FewerTokens = None
    max_minutes: options.MaxMinutes = 2.0
    temperature: options.SampledTemperature = 0.8
    picture: Annotated[Path, option("Picture to draw: .png, .pdf or .svg.")] = Path("demo.png")
    json: options.Json = None
    quiet: Annotated[bool, option("Show nothing before the table.")] = False


@dataclass(frozen=True)
class EvaluateOptions(options.ModelOptions):
    """The options of `clover evaluate`; each tree is measured at each temperature."""

    files: Annotated[
        tuple[str, ...],
        argument(
            "Prompts: Spec-Bench, MT-bench, HumanEval, GSM8K, other .json and .jsonl, .txt with one per line; "
            ".py and other texts are cut into prompts. Left out: code, for smollm2 questions of MT-bench.",
            metavar="FILE",
        ),
    ] = ()
    draft: options.Draft = None
    trees: options.Trees = ()
    temperatures: options.Temperatures = (0.0, 1.0)
    max_new_tokens: FewerTokens = None
    max_prompts: options.MaxPrompts = 24
    batch_size: options.BatchSize = 8
    by_position: Annotated[bool, option("Show τ by the position in the text.")] = False
    no_copies: Annotated[bool, option("Measure the draft alone: it copies nothing from the text.")] = False
    details: Annotated[bool, option("Show the accuracy at each depth of the draft.")] = False
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
        Path | None, option("File to write. Left out: tuning.json with a draft of your own; for vllm, none.")
    ] = None
    json: options.Json = None
    for_: Annotated[Literal["clover", "vllm"], option("The engine that will run the draft.", "--for")] = (
        "clover"
    )
    costs: Annotated[
        Path | None,
        option(
            "For vllm: times of its steps, by python -m clover.integrations.vllm.costs. Left out: measured here."
        ),
    ] = None


@dataclass(frozen=True)
class CostOptions(options.ModelOptions):
    """The options of `clover cost`: a draft system on a target, or a trained draft."""

    prompts: options.Files = ()
    draft: Annotated[
        str | None,
        option("A trained draft, whose sizes are used. Left out: random weights.", metavar="NAME|DIR"),
    ] = None
    system: Annotated[
        str | None,
        option("System of a draft yet to be made, as for `clover train`. Left out: recall.", metavar="NAME"),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        option("Tokens that the draft will propose from (`clover train --set draft_vocab_size=N`).", min=1),
    ] = None
    trees: options.Trees = ()
    batch_sizes: options.BatchSizes = (1, 4, 16)
    taus: Annotated[
        tuple[float, ...],
        option("τ to predict the speed-up at; may be given several times.", metavar="T", min=1),
    ] = ()
    minutes: Annotated[
        float | None, _money("Minutes of the training. Left out: what --draft took.", metavar="M", min=0)
    ] = None
    price: Annotated[
        float | None, _money("Money per hour of the machine that trains.", metavar="P", min=0)
    ] = None
    serving_price: Annotated[
        float | None, _money("The same of the machine that decodes. Left out: --price.", metavar="P", min=0)
    ] = None
    max_new_tokens: options.MaxNewTokens = 128
    max_minutes: options.MaxMinutes = 1.25
    seed: options.Seed = 0
    json: options.Json = None
