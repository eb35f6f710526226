"""The options of the audit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from clover import options
from clover.options import API_KEY, option, panel

_server = panel("Server")


@dataclass(frozen=True)
class AuditOptions(options.ModelOptions):
    """The options of `clover audit`."""

    draft: options.Draft = None
    prompts: options.Prompts = None
    trees: Annotated[
        tuple[str, ...],
        option(
            "Token tree, as in `clover generate --help`; may be given several times. Default: auto, own, a chain and "
            "lookup.",
            metavar="TREE",
        ),
    ] = ()
    batch_sizes: options.BatchSizes = (1, 4)
    temperature: options.SampledTemperature = 0.8
    max_new_tokens: options.MaxNewTokens = 32
    max_prompts: options.MaxPrompts = 6
    max_minutes: options.MaxMinutes = 2.0
    compile: options.Compile = False
    server: Annotated[
        str | None,
        _server("Audit this OpenAI-compatible server instead of a model on this machine.", metavar="URL"),
    ] = None
    plain_server: Annotated[
        str | None,
        _server(
            "A server of the same model without speculation. Default: the server at --server, with "
            '"speculation": false.',
            metavar="URL",
        ),
    ] = None
    model: Annotated[
        str | None,
        _server("Model name on the server. Default: the first in its list.", metavar="NAME"),
    ] = None
    api_key: Annotated[
        str | None,
        _server(f"API key of the servers; {API_KEY} is safer.", metavar="KEY", envvar=API_KEY),
    ] = None
    json: options.Json = None
    html: Annotated[Path | None, option("Also write the report as one HTML page.")] = None
