"""The parts of one server."""

from __future__ import annotations

import time
from typing import Any

from clover.api import Clover, fill_chat_template
from clover.errors import UserError
from clover.serve.metrics import ServerMetrics
from clover.serve.options import ServerOptions
from clover.serve.parsing import RequestParser
from clover.serve.worker import Worker


class Service:
    """A model, the thread that its engine runs in, and how it is known to clients."""

    def __init__(self, model: Clover, name: str, draft: str | None, settings: ServerOptions):
        self.name, self.settings = name, settings
        self.tokenizer = model.target.require_tokenizer()
        self.metrics = ServerMetrics()
        self.worker = Worker(model.engine, settings, self.metrics)
        most_texts = settings.max_sequences + settings.max_waiting
        self.parser = RequestParser(model, name, settings.max_new_tokens, most_texts)
        self.card: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "clover",
            "draft": draft,
            "max_model_len": model.target.longest_run,
            "max_new_tokens": settings.max_new_tokens,
            "chat": _tells_roles_apart(self.tokenizer),
        }


def _tells_roles_apart(tokenizer: Any) -> bool:
    """Return whether a chat template works and does more than to join messages; the page offers chat then."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    try:
        return fill_chat_template(tokenizer, [{"role": "user", "content": "?"}], tokenize=False) != "?"
    except UserError:
        return False
