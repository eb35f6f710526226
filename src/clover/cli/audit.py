"""``clover audit``: prove that a draft leaves the output as it is."""

import typer

from clover.audit.options import AuditOptions
from clover.errors import UserError
from clover.options import takes_options


@takes_options
def audit(options: AuditOptions) -> None:
    """Look on this machine for any way in which speculative decoding changes the output, before it goes live.

    Exits with 0 if there is none, near-ties of rounding aside, and with 1 if there is one.
    """
    try:
        from clover.audit import run
    except ModuleNotFoundError as error:
        needed = "clover audit needs more packages: pip install httpx scipy"
        raise UserError(f"{needed} ({error.name} is missing)") from error
    if not run.audit(options):
        raise typer.Exit(1)
