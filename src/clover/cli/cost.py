"""``clover cost``: what a training takes, and after how many tokens it has paid for itself."""

from typing import Annotated, Any

import typer

from clover.cli import options

_PLAN, _MONEY, _USE = "Forecast", "Money", "How the draft is used"

Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPTS",
        help="Files with prompts, as `clover evaluate` takes them. Left out: openings of training texts that were "
        "held out.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="After a training: its output directory. Left out: a forecast is made."),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_PLAN,
        help="Texts of the planned training; may be given several times.",
    ),
]
Minutes = Annotated[
    float | None, typer.Option(metavar="M", rich_help_panel=_PLAN, help="Minutes of the planned training.")
]
MaxSteps = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=_PLAN, help="Or its optimizer steps."),
]
RegenerateMinutes = Annotated[
    float,
    typer.Option(
        metavar="M",
        min=0,
        rich_help_panel=_PLAN,
        help="Minutes that --regenerate will take before the training; they are added to what it takes.",
    ),
]
ProbeMinutes = Annotated[
    float,
    typer.Option(metavar="M", rich_help_panel=_PLAN, help="Minutes of the probe's two trainings together."),
]
System = Annotated[
    str,
    typer.Option(metavar="NAME", rich_help_panel=_PLAN, help="Draft system, as of the training."),
]
MaxLength = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=_PLAN, help="Longest text, in tokens, as of the training.")
]
BatchTokens = Annotated[
    int,
    typer.Option(metavar="N", rich_help_panel=_PLAN, help="Tokens of a forward pass, as of the training."),
]
LearningRate = Annotated[
    float, typer.Option("--lr", rich_help_panel=_PLAN, help="Peak learning rate, as of the training.")
]
Price = Annotated[
    float | None,
    typer.Option(metavar="P", rich_help_panel=_MONEY, help="Money per hour of the machine that trains."),
]
ServingPrice = Annotated[
    float | None,
    typer.Option(
        metavar="P", rich_help_panel=_MONEY, help="The same of the machine that decodes. Left out: --price."
    ),
]
BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, rich_help_panel=_USE, help="Texts that run together.")
]
Batches = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, rich_help_panel=_USE, help="Batches of prompts that are measured, at most."
    ),
]


def cost(
    prompts: Prompts = None,
    target: options.Target = None,
    draft: Draft = None,
    data: Data = None,
    minutes: Minutes = None,
    max_steps: MaxSteps = None,
    regenerate_minutes: RegenerateMinutes = 0.0,
    probe_minutes: ProbeMinutes = 3.0,
    price: Price = None,
    serving_price: ServingPrice = None,
    batch_size: BatchSize = 1,
    temperature: options.Temperature = 0.0,
    max_new_tokens: options.MaxNewTokens = 64,
    batches: Batches = 16,
    tree: options.Tree = None,
    system: System = "recall",
    max_length: MaxLength = 2048,
    batch_tokens: BatchTokens = 8192,
    lr: LearningRate = 1e-3,
    seed: options.Seed = 0,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = None,
) -> None:
    """Show what a draft's training takes and after how many tokens it has paid for itself.

    With --draft this is measured; with --data and --minutes it is a forecast from two short trainings.
    """
    chosen: dict[str, Any] = dict(locals())  # the parameters have the names of the options
    from clover.cost import CostOptions, run_cost

    options.hide_loading_bars()
    chosen |= {"prompts": tuple(prompts or ()), "data": tuple(data or ())}
    run_cost(CostOptions(**chosen))
