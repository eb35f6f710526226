"""``clover audit``: prove that a draft leaves the output as it is."""

import typer

from clover.audit.options import AuditOptions
from clover.options import takes_options


@takes_options
def audit(options: AuditOptions) -> None:
    """Look on this machine for any way in which speculative decoding changes the output, before it goes live.

    Exits with 0 if there is none, near-ties of rounding aside, and with 1 if there is one.
    """
    from clover.audit.run import run_audit

    if not run_audit(options):
        raise typer.Exit(1)
