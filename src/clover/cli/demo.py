"""``clover demo``: plain decoding and drafts side by side, on held-out prompts."""

from pathlib import Path
from typing import Annotated

import typer

from clover.cli import options

Drafts = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="NAME|DIR",
        help="Draft trained for the target, or lookup; may be given several times. Left out: the embedded ones.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompts, as `clover evaluate` takes them. Left out: held-out code prompts.",
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens per prompt. Left out: what fits into three and a half."),
]
Temperature = Annotated[float, typer.Option(metavar="T", help="Of the sampled part; 0 leaves it out.")]
Picture = Annotated[Path, typer.Option(metavar="FILE", help="Picture to draw: .png, .pdf or .svg.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing before the table.")]


def demo(
    target: options.Target = None,
    draft: Drafts = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    tree: options.Tree = None,
    prompts: Prompts = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = 0.8,
    picture: Picture = Path("demo.png"),
    json: options.Json = None,
    html: options.Html = None,
    quiet: Quiet = False,
) -> None:
    """Compare drafts with plain decoding, live, then as a table and a picture: at most three and a half minutes.

    Exits with 1 if a text differs from that of plain decoding and rounding does not explain it.
    """
    from clover.demo import DemoOptions, run_demo

    options.hide_loading_bars()
    result = run_demo(
        DemoOptions(
            target=target,
            drafts=tuple(dict.fromkeys(draft or ())),
            tree=tree,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            picture=picture,
            json=json,
            html=html,
            quiet=quiet,
        )
    )
    if result.defect:
        raise typer.Exit(1)
