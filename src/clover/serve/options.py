"""The options of the server besides the model."""

from dataclasses import dataclass
from typing import Annotated

from clover.options import API_KEY, Grammar, panel

_server, _limits = panel("Server"), panel("Limits")


@dataclass(frozen=True)
class ServerOptions:
    """The address of a server, its key, and its limits."""

    host: Annotated[str, _server("Address to listen on; 0.0.0.0 is all addresses.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _server("Port; 0 is any free port.", metavar="N", min=0, max=65535)] = 8000
    name: Annotated[
        str | None, _server("Name of the model for clients. Default: the name of the target.", metavar="NAME")
    ] = None
    api_key: Annotated[str | None, _server("Key that clients must send.", metavar="KEY", envvar=API_KEY)] = (
        None
    )
    grammar: Grammar = None
    max_sequences: Annotated[int, _limits("Maximum number of running texts.", metavar="N", min=1)] = 32
    max_waiting: Annotated[
        int, _limits("Maximum number of waiting texts; further requests get 429.", metavar="N", min=0)
    ] = 256
    max_new_tokens: Annotated[
        int | None,
        _limits("Maximum number of new tokens. Default: the rest of the context.", metavar="N", min=1),
    ] = None
    prefix_mib: Annotated[
        int,
        _limits(
            "Memory in MiB for the keys and values of finished chats, which later requests reuse; 0 keeps none.",
            metavar="N",
            min=0,
        ),
    ] = 256
    max_body_bytes: Annotated[
        int, _limits("Maximum size of a request body; a larger one gets 413.", metavar="N", min=1024)
    ] = 4 * 2**20
    max_connections: Annotated[
        int, _limits("Maximum number of open connections; further ones get 503.", metavar="N", min=1)
    ] = 1024
    request_seconds: Annotated[
        float, _limits("Maximum time of a request, waiting included; then 408.", metavar="S", min=1)
    ] = 600.0
    read_seconds: Annotated[
        float,
        _limits(
            "Maximum time to receive a request's body, and maximum time in which a client reads nothing of its answer.",
            metavar="S",
            min=0.1,
        ),
    ] = 30.0
    stop_seconds: Annotated[
        int,
        _limits(
            "Maximum time for running requests after the server is stopped; then 503.", metavar="S", min=0
        ),
    ] = 600
