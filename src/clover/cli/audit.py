"""``clover audit``: prove that a draft leaves the output as it is."""

import typer

from clover.audit.options import AuditOptions
from clover.errors import UserError
from clover.options import takes_options


@takes_options
def audit(options: AuditOptions) -> None:
    """Check on this machine, before deployment, whether speculative decoding changes the output in any way.

    Exits with 0 if it does not, apart from near-ties that rounding explains; otherwise with 1.
    """
    try:
        from clover.audit import run
    except ModuleNotFoundError as error:
        needed = "clover audit needs more packages: pip install httpx scipy"
        raise UserError(f"{needed} ({error.name} is missing)") from error
    if not run.audit(options):
        raise typer.Exit(1)
