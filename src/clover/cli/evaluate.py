"""``clover evaluate``: how good a draft's heads are, what is accepted of it, and where it is weak."""

from pathlib import Path
from typing import Annotated

import typer

from clover import options

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Prompts: Spec-Bench, MT-bench, HumanEval, GSM8K, other .json and .jsonl, .txt with one per line; .py "
        "and other texts are cut into prompts. Left out: code prompts.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Measure the heads on these texts as they are (files as `clover train --data` takes them), not on what "
        "the target writes; may be given several times.",
    ),
]
Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="TREE",
        help="Token tree to measure, of those that `clover generate --help` names; may be given several times. "
        "Left out: the draft's own.",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option("--temperature", metavar="T", min=0, help="May be given several times. Left out: 0 and 1."),
]
MaxPrompts = Annotated[
    int, typer.Option(metavar="N", min=1, help="Most prompts, spread over the groups, and most texts.")
]
BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, help="Prompts that run together; less takes less memory.")
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the results: .png, .pdf or .svg.")]


def evaluate(
    files: Files = None,
    texts: Texts = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    trees: Trees = None,
    temperatures: Temperatures = None,
    max_new_tokens: options.MaxNewTokens = 128,
    max_prompts: MaxPrompts = 24,
    batch_size: BatchSize = 8,
    seed: options.Seed = 0,
    json: options.Json = None,
    picture: Picture = None,
) -> None:
    """Show how good a draft is: accuracy of its heads, acceptance in any tree, and where it is weak."""
    from clover.evaluate import EvaluateOptions, run_evaluate

    options.hide_loading_bars()
    run_evaluate(
        EvaluateOptions(
            files=tuple(files or ()),
            texts=tuple(texts or ()),
            target=target,
            draft=draft,
            trees=tuple(dict.fromkeys(trees or ())),
            temperatures=tuple(dict.fromkeys(temperatures or (0.0, 1.0))),
            max_new_tokens=max_new_tokens,
            max_prompts=max_prompts,
            batch_size=batch_size,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            seed=seed,
            json=json,
            picture=picture,
        )
    )
