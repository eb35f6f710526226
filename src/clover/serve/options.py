"""The options of the server besides the model."""

from dataclasses import dataclass
from typing import Annotated

from clover.options import API_KEY, Grammar, panel

_server, _limits = panel("Server"), panel("Limits")


@dataclass(frozen=True)
class ServerOptions:
    """The address of a server, its key, and its limits."""

    host: Annotated[str, _server("Address to listen at; 0.0.0.0 is all of them.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _server("Port; 0 is any free one.", metavar="N", min=0, max=65535)] = 8000
    name: Annotated[
        str | None, _server("The model's name for clients. Left out: that of the target.", metavar="NAME")
    ] = None
    api_key: Annotated[str | None, _server("Key that clients must send.", metavar="KEY", envvar=API_KEY)] = (
        None
    )
    grammar: Grammar = None
    max_sequences: Annotated[int, _limits("Texts that run at once.", metavar="N", min=1)] = 32
    max_waiting: Annotated[
        int, _limits("Texts that may wait for a place; more requests get 429.", metavar="N", min=0)
    ] = 256
    max_new_tokens: Annotated[
        int | None,
        _limits("Most new tokens per text. Left out: what the context leaves.", metavar="N", min=1),
    ] = None
    prefix_mib: Annotated[
        int,
        _limits(
            "MiB of memory for keys and values of ended chats that later requests may reuse; 0 keeps none.",
            metavar="N",
            min=0,
        ),
    ] = 256
    max_body_bytes: Annotated[
        int, _limits("Largest request body; a larger one gets 413.", metavar="N", min=1024)
    ] = 4 * 2**20
    max_connections: Annotated[
        int, _limits("Connections that are open at once; more get 503.", metavar="N", min=1)
    ] = 1024
    request_seconds: Annotated[
        float, _limits("Longest time of a request, waiting included; then 408.", metavar="S", min=1)
    ] = 600.0
    read_seconds: Annotated[
        float,
        _limits(
            "Longest time for a request's body to arrive, and for a client to read nothing of its answer.",
            metavar="S",
            min=0.1,
        ),
    ] = 30.0
    stop_seconds: Annotated[
        int,
        _limits(
            "Longest time for running requests when the server is stopped; then 503.", metavar="S", min=0
        ),
    ] = 600
