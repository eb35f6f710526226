"""``clover compare``: train and measure the draft systems of a suite side by side."""

from pathlib import Path
from typing import Annotated

import typer

from clover import options

SuiteName = Annotated[
    str,
    typer.Argument(
        metavar="SUITE",
        help="TOML file, or one of: quick, systems, ablation, tree-size, learning-rate, paper-clover1, paper-clover2.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Results and report. Left out: runs/ and the suite's name.",
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keep text and drafts here; suites on one target can share it, and train no draft twice. "
        "Left out: beside the results, DIR.work.",
    ),
]
Target = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Another target than the suite's: directory or hub name.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE", help="Texts or chats to train on, in place of the suite's; repeat for more."
    ),
]
Task = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE[:GROUP]",
        help="Prompts to measure on, in place of the suite's tasks; repeat for more.",
    ),
]
ReportOnly = Annotated[
    bool, typer.Option("--report-only", help="Write the report of the results that are there; run nothing.")
]


def compare(
    suite: SuiteName,
    target: Target = None,
    data: Data = None,
    task: Task = None,
    output: Output = None,
    work: Work = None,
    report_only: ReportOnly = False,
    dtype: options.Dtype = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Compare draft systems, each trained at equal budget: tables, plots and one HTML page.

    What was interrupted goes on with the same command; nothing that is finished is run again.
    """
    from clover.compare import CompareOptions, run_compare

    options.hide_loading_bars()
    run_compare(
        CompareOptions(
            suite,
            output,
            work,
            target,
            tuple(data or ()),
            tuple(task or ()),
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            report_only=report_only,
        )
    )
