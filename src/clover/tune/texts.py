"""What the target writes after the user's prompts: the texts on which a draft's acceptance is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clover.engine import Engine, Request
from clover.interleaved import decode
from clover.sampling import SamplingParams


@dataclass(frozen=True)
class Text:
    """A prompt, what the target wrote after it, and how its tokens were chosen."""

    prompt: tuple[int, ...]
    new: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of it."""
        return (*self.prompt, *self.new)


def write_texts(
    engine: Engine,
    requests: Sequence[Request],
    batch_size: int,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Text]:
    """Decode requests in batches.

    Args:
        progress: called after each batch with the share of the requests that are done.
    """
    texts: list[Text] = []
    for start in range(0, len(requests), batch_size):
        some = requests[start : start + batch_size]
        new = decode(engine, some).texts
        texts += [
            Text(request.prompt, tokens, request.params) for request, tokens in zip(some, new, strict=True)
        ]
        progress(len(texts) / len(requests))
    return texts
