"""``clover serve``: an OpenAI-compatible server on this machine."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from clover import options
from clover.errors import UserError
from clover.options import panel, takes_options

_server, _limits = panel("Server"), panel("Limits")
_KEY_VARIABLE = "CLOVER_API_KEY"
_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeOptions(options.ModelOptions):
    """The options of `clover serve`."""

    draft: options.Draft = None
    method: options.Method = "auto"
    tree: options.Tree = None
    plain: options.Plain = False
    compile: options.Compile = False
    host: Annotated[str, _server("Address to listen at; 0.0.0.0 is all of them.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    port: Annotated[int, _server("Port; 0 is any free one.", metavar="N", min=0, max=65535)] = 8000
    name: Annotated[
        str | None, _server("The model's name for clients. Left out: that of the target.", metavar="NAME")
    ] = None
    api_key: Annotated[
        str | None,
        _server(f"Key that clients must send. Left out: {_KEY_VARIABLE}, if it is set.", metavar="KEY"),
    ] = None
    max_rows: Annotated[int, _limits("Texts that run at once.", metavar="N", min=1)] = 32
    max_waiting: Annotated[
        int, _limits("Texts that may wait for a place; more requests get 429.", metavar="N", min=0)
    ] = 256
    max_new_tokens: Annotated[
        int | None,
        _limits("Most new tokens per text. Left out: what the context leaves.", metavar="N", min=1),
    ] = None
    max_body_bytes: Annotated[int, _limits("Of a request.", metavar="N", min=1024)] = 4 * 2**20
    max_connections: Annotated[int, _limits("Open at once; more get 503.", metavar="N", min=1)] = 2048
    request_seconds: Annotated[float, _limits("For a request, waiting included.", metavar="S", min=1)] = 600.0
    read_seconds: Annotated[
        float, _limits("For a request to come whole, and for a client to read on.", metavar="S", min=0.1)
    ] = 30.0
    stop_seconds: Annotated[
        float, _limits("For running requests to end when the server is stopped.", metavar="S", min=0)
    ] = 600.0


@takes_options
def serve(chosen: ServeOptions) -> None:
    """Serve a model by OpenAI's interface (completions, chat, streaming), with a page to watch it at /."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError("clover serve needs more packages: pip install 'clover-decoding[serve]'") from error
    from clover import api
    from clover.serve.run import listen
    from clover.serve.run import serve as run
    from clover.serve.service import Service, Settings

    key = chosen.api_key if chosen.api_key is not None else os.environ.get(_KEY_VARIABLE)
    if key == "":
        raise UserError("the API key is empty; give one, or leave it out")
    limits = {name: getattr(chosen, name) for name in Settings.__dataclass_fields__ if name != "api_key"}
    taken = listen(chosen.host, chosen.port)
    names = ("method", "tree", "plain", "dtype", "device", "trust_remote_code", "compile")
    model = api.load(chosen.target, chosen.draft, **{name: getattr(chosen, name) for name in names})
    service = Service(model, _name(chosen), _draft_name(chosen, model), Settings(key, **limits))
    if key is None and chosen.host not in _LOCAL:
        print("clover serve: no API key: whoever reaches this address can use it", file=sys.stderr)
    run(
        service,
        taken,
        lambda at: print(f"{service.name} at {at}/v1, page at {at}/", file=sys.stderr, flush=True),
    )


def _name(chosen: ServeOptions) -> str:
    """What clients call the model."""
    return chosen.name or (Path(chosen.target).name if chosen.target else "clover-embedded")


def _draft_name(chosen: ServeOptions, model: Any) -> str | None:
    """What the page calls the draft; None where nothing drafts."""
    if model.engine.draft is None:
        return None
    return Path(chosen.draft).name if chosen.draft else model.engine.draft.config.model_type
