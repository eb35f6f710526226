"""What one server is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from clover.api import Clover
from clover.errors import UserError
from clover.serve.asking import Asking
from clover.serve.metrics import Metrics
from clover.serve.worker import Worker


@dataclass(frozen=True)
class Settings:
    """The limits of a server.

    Attributes:
        api_key: None for none.
        max_rows: texts that run at once.
        max_waiting: texts that may wait beyond these; further requests are refused.
        max_new_tokens: that a request may ask for per text; None for what the context leaves.
        max_body_bytes: of a request.
        max_connections: that are open at once.
        request_seconds: for a request from its arrival to its end.
        read_seconds: for a request to come whole; a client may take nothing of its response for as long.
        stop_seconds: that running requests have to end when the server is stopped.
    """

    api_key: str | None = None
    max_rows: int = 32
    max_waiting: int = 256
    max_new_tokens: int | None = None
    max_body_bytes: int = 4 * 2**20
    max_connections: int = 2048
    request_seconds: float = 600.0
    read_seconds: float = 30.0
    stop_seconds: float = 600.0


class Service:
    """A model, the thread that its engine runs in, and how it is known to clients."""

    def __init__(self, model: Clover, name: str, draft: str | None, settings: Settings):
        if model.target.tokenizer is None:
            raise UserError("the target has no tokenizer; a server needs one")
        self.name, self.settings = name, settings
        self.tokenizer = model.target.tokenizer
        self.metrics = Metrics()
        self.worker = Worker(model.engine, settings.max_rows, settings.max_waiting, self.metrics)
        most_texts = settings.max_rows + settings.max_waiting
        self.asking = Asking(model, name, settings.max_new_tokens, most_texts)
        self.card: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "clover",
            "draft": draft,
            "max_model_len": model.target.context_length,
            "chat": _tells_roles_apart(self.tokenizer),
        }


def _tells_roles_apart(tokenizer: Any) -> bool:
    """Whether the chat template, if there is one, does more than to join the messages; the page offers chat then."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    message = {"role": "user", "content": "?"}
    return tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False) != "?"
