"""``clover serve``: an OpenAI-compatible server on this machine."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from clover.cli.generation import DraftingOptions
from clover.errors import UserError
from clover.options import API_KEY, takes_options
from clover.serve.options import ServerOptions

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeOptions(ServerOptions, DraftingOptions):
    """The options of `clover serve`."""


@takes_options
def serve(options: ServeOptions) -> None:
    """Serve a model with an OpenAI-compatible API (completions, chat, streaming) and a status page at /."""
    # typer treats an empty variable as unset, so the server would be open to everybody.
    if options.api_key == "" or (options.api_key is None and os.environ.get(API_KEY) == ""):
        raise UserError(f"the API key is empty; give a key, or leave out --api-key and unset {API_KEY}")
    try:
        from clover.serve.run import listen
        from clover.serve.run import serve as serve_model
    except ModuleNotFoundError as error:
        needed = "clover serve needs more packages: pip install fastapi prometheus_client uvicorn"
        raise UserError(f"{needed} ({error.name} is missing)") from error
    taken = listen(options.host, options.port, options.read_seconds)
    model = options.load()
    engine, draft = model.engine, None
    if engine.draft is not None:
        draft = _last_name(options.draft or engine.draft.config.model_type)
    elif engine.policy.max_depth:
        draft = engine.tree.name
    name = options.name or _last_name(options.target or "clover-embedded")
    if options.api_key is None and options.host not in _LOCAL:
        print("clover: warning: whoever reaches this server can use it; see --api-key", file=sys.stderr)

    def tell(address: str) -> None:
        print(f"{name} is served at {address}/v1 · page at {address}/", file=sys.stderr, flush=True)

    serve_model(model, name, draft, options, taken, tell)


def _last_name(said: str) -> str:
    """Return the last part of a hub name or a path; `.` and `..` are resolved first."""
    name = Path(said).name
    return Path(said).resolve().name if name in ("", "..") else name
