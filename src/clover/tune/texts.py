"""The user's prompts, and what the target writes after them: the texts on which acceptance is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clover.data.tasks import fitting
from clover.engine import Engine, Request
from clover.evaluate import choose_prompts
from clover.interleaved import decode
from clover.sampling import SamplingParams
from clover.target import TargetModel


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
    """Decode requests in batches; `progress` is called after each with the share of the requests that are done."""
    texts: list[Text] = []
    for start in range(0, len(requests), batch_size):
        some = requests[start : start + batch_size]
        written = zip(some, decode(engine, some).texts, strict=True)
        texts += [Text(request.prompt, tokens, request.params) for request, tokens in written]
        progress(len(texts) / len(requests))
    return texts


def read_requests(
    files: Sequence[str],
    target: TargetModel,
    limit: int,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[Request]:
    """Requests of the prompts in files, or of the embedded development prompts; number i has seed `seed + i`.

    Args:
        limit: prompts at most.

    Raises:
        UserError: a file cannot be used, or no prompt leaves room for the new tokens.
    """
    prompts = fitting(choose_prompts(files, target, limit), target.context_length, max_new_tokens)
    params = (SamplingParams(temperature=temperature, seed=seed + number) for number in range(len(prompts)))
    return [Request(one.tokens, max_new_tokens, how) for one, how in zip(prompts, params, strict=True)]


def fill_batch(requests: Sequence[Request], size: int, first: int = 0) -> list[Request]:
    """So many requests, from number `first` on, and again from the start where there are too few."""
    return [requests[number % len(requests)] for number in range(first, first + size)]
