"""``clover cost``: what τ a draft must reach, and after how many tokens its training has paid for itself."""

from typing import Annotated

import typer

from clover.cli import options

_MONEY, _USE = "Training and money", "How the draft is used"

Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPTS", help="Files with prompts, as `clover evaluate` takes them. Left out: code prompts."
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A trained draft, whose sizes are used. Left out: random weights."),
]
System = Annotated[str, typer.Option(metavar="NAME", help="Draft system, as for `clover train`.")]
DraftVocabulary = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens that the draft will propose from (`clover vocabulary`)."),
]
Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="TREE",
        rich_help_panel=_USE,
        help="A static tree; may be given several times. Left out: chains and the draft's own tree.",
    ),
]
BatchSizes = Annotated[
    list[int] | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        min=1,
        rich_help_panel=_USE,
        help="Texts that run together; may be given several times. Left out: 1, 4 and 16.",
    ),
]
Taus = Annotated[
    list[float] | None,
    typer.Option(
        "--tau",
        metavar="T",
        rich_help_panel=_USE,
        help="Acceptance length to predict the speed-up at; may be given several times.",
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="M", rich_help_panel=_MONEY, help="Minutes of the training. Left out: what --draft took."
    ),
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
MaxMinutes = Annotated[float, typer.Option(metavar="M", help="Most time, shared by the batch sizes.")]


def cost(
    prompts: Prompts = None,
    target: options.Target = None,
    draft: Draft = None,
    system: System = "recall",
    draft_vocabulary: DraftVocabulary = None,
    trees: Trees = None,
    batch_sizes: BatchSizes = None,
    taus: Taus = None,
    minutes: Minutes = None,
    price: Price = None,
    serving_price: ServingPrice = None,
    max_new_tokens: options.MaxNewTokens = 128,
    max_minutes: MaxMinutes = 1.0,
    seed: options.Seed = 0,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = None,
) -> None:
    """Measure what drafting costs here, before any training, and show the τ that 1.0×, 1.5× and 2× take.

    With --minutes, or a trained --draft, it also shows after how many tokens the training has paid for itself.
    """
    from clover.cost import CostOptions, run_cost

    options.hide_loading_bars()
    run_cost(
        CostOptions(
            prompts=tuple(prompts or ()),
            target=target,
            draft=draft,
            system=system,
            draft_vocabulary=draft_vocabulary,
            trees=tuple(trees or ()),
            batch_sizes=tuple(sorted(set(batch_sizes or CostOptions.batch_sizes))),
            taus=tuple(taus or ()),
            minutes=minutes,
            price=price,
            serving_price=serving_price,
            max_new_tokens=max_new_tokens,
            max_minutes=max_minutes,
            seed=seed,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            json=json,
        )
    )
