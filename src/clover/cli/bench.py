"""``clover bench``: speed, time split and memory of every way to decode, measured in turn."""

from pathlib import Path
from typing import Annotated

import typer

from clover.cli import options

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET", help="Target model: a directory or a name on the hub. Left out: the embedded one."
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Prompts, as `clover evaluate` takes them. Left out: held-out code prompts."
    ),
]
BatchSizes = Annotated[
    list[int] | None,
    typer.Option("--batch-size", metavar="N", min=1, help="May be given several times. Left out: 1."),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option("--temperature", metavar="T", min=0, help="May be given several times. Left out: 0."),
]
Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="TREE",
        help="Token tree to measure beside the draft's own, of those that `clover generate --help` names; may be given "
        "several times.",
    ),
]
Assistant = Annotated[
    str | None,
    typer.Option(metavar="NAME|DIR", help="Small model for transformers' assisted generation."),
]
Rounds = Annotated[
    int, typer.Option(metavar="N", min=1, help="How often every method decodes all prompts, in turn.")
]
MaxPrompts = Annotated[
    int, typer.Option(metavar="N", min=1, help="Most prompts; larger batches take them again.")
]
Context = Annotated[
    bool,
    typer.Option(
        "--context",
        help="Measure the cost of a step against the context, up to 32 k tokens, on a small model.",
    ),
]
NoReference = Annotated[bool, typer.Option("--no-reference", help="Leave transformers' own `generate` out.")]
NoMemory = Annotated[bool, typer.Option("--no-memory", help="Leave the peak memory out.")]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write one JSON object per line: method, batch size, temperature; - ends standard output with them.",
    ),
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the metrics: .png, .pdf or .svg.")]


def bench(
    target: Target = None,
    draft: options.Draft = None,
    prompts: Prompts = None,
    batch_size: BatchSizes = None,
    temperature: Temperatures = None,
    tree: Trees = None,
    assistant: Assistant = None,
    rounds: Rounds = 5,
    max_new_tokens: options.MaxNewTokens = 128,
    max_prompts: MaxPrompts = 8,
    context: Context = False,
    no_reference: NoReference = False,
    no_memory: NoMemory = False,
    compile: options.Compile = False,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: Json = None,
    picture: Picture = None,
    html: options.Html = None,
) -> None:
    """Measure plain decoding, the draft, and transformers' own ways to decode, in turn on the same prompts."""
    from clover.bench import BenchOptions, run_bench

    options.hide_loading_bars()
    run_bench(
        BenchOptions(
            target=target,
            draft=draft,
            prompts=prompts,
            batch_sizes=tuple(dict.fromkeys(batch_size or (1,))),
            temperatures=tuple(dict.fromkeys(temperature or (0.0,))),
            trees=tuple(dict.fromkeys(tree or ())),
            assistant=assistant,
            rounds=rounds,
            max_new_tokens=max_new_tokens,
            max_prompts=max_prompts,
            context=context,
            no_reference=no_reference,
            no_memory=no_memory,
            compile=compile,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            json=json,
            picture=picture,
            html=html,
        )
    )
