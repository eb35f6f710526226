"""The user's prompts, and what the target writes after them: the texts on which acceptance is counted."""

from collections.abc import Sequence

from clover.engine import Engine, Request
from clover.measure.evaluate.run import choose_prompts
from clover.measure.interleaved import decode
from clover.sampling import SamplingParams
from clover.target import TargetModel

WRITTEN_TOGETHER = 8


def write_texts(engine: Engine, requests: Sequence[Request]) -> tuple[tuple[int, ...], ...]:
    """The new tokens of each request."""
    return decode(engine, requests, max_sequences=WRITTEN_TOGETHER).texts


def read_requests(
    files: Sequence[str],
    target: TargetModel,
    limit: int,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[Request]:
    """Requests of at most `limit` prompts of files, or embedded development prompts; number i has seed `seed + i`.

    UserError if a file cannot be used, or no prompt leaves room for the new tokens.
    """
    prompts, _ = choose_prompts(files, target, max_new_tokens, limit)
    params = (SamplingParams(temperature=temperature, seed=seed + number) for number in range(len(prompts)))
    return [Request(one.tokens, max_new_tokens, how) for one, how in zip(prompts, params, strict=True)]


def fill_batch(requests: Sequence[Request], size: int, first: int = 0) -> list[Request]:
    """So many requests, from number `first` on, and again from the start where there are too few."""
    return [requests[number % len(requests)] for number in range(first, first + size)]
