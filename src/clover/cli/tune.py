"""``clover tune``: find what drafts fastest on this machine, per batch size, and save it with the draft."""

from pathlib import Path
from typing import Annotated

import typer

from clover.cli import options

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Your own prompts, in the files that `clover evaluate` takes. Left out: code prompts.",
    ),
]
BatchSizes = Annotated[
    list[int] | None,
    typer.Option(
        "--batch-size", metavar="N", min=1, help="May be given several times. Left out: 1, 2, 4, 8 and 16."
    ),
]
MaxPrompts = Annotated[int, typer.Option(metavar="N", min=1, help="Most prompts, spread over their groups.")]
MaxMinutes = Annotated[
    float, typer.Option(metavar="M", help="Most time, shared by the batch sizes; what is begun is finished.")
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File to write. Left out: tuning.json in the draft's directory."),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the speed-ups: .png, .pdf or .svg."),
]


def tune(
    files: Files = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    batch_sizes: BatchSizes = None,
    temperature: options.Temperature = 0.0,
    max_new_tokens: options.MaxNewTokens = 128,
    max_prompts: MaxPrompts = 24,
    max_minutes: MaxMinutes = 10.0,
    seed: options.Seed = 0,
    output: Output = None,
    json: options.Json = None,
    picture: Picture = None,
) -> None:
    """Measure this machine and find the fastest tree, or none, for each batch size; saves it with the draft."""
    from clover.tune import TuneOptions, run_tune

    options.hide_loading_bars()
    run_tune(
        TuneOptions(
            files=tuple(files or ()),
            target=target,
            draft=draft,
            batch_sizes=tuple(sorted(set(batch_sizes or TuneOptions.batch_sizes))),
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            max_prompts=max_prompts,
            max_minutes=max_minutes,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            seed=seed,
            output=output,
            json=json,
            picture=picture,
        )
    )
