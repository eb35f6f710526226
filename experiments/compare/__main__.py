"""``python -m experiments.compare``: draft systems side by side, by a suite."""

import typer

from clover.options import takes_options
from experiments.command import main
from experiments.compare.options import CompareOptions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@takes_options
def compare(options: CompareOptions) -> None:
    """Compare draft systems, each trained for equal steps; the tables are one Markdown page.

    What was interrupted goes on with the same command; nothing that is finished is run again.
    """
    from experiments.compare.run import run_compare

    run_compare(options)


if __name__ == "__main__":
    main(app, "compare")
