"""A complete, simple implementation of speculative decoding for one text, without optimizations. Read this first.

A target model writes one token per forward pass. A draft model guesses the next few tokens at low cost. The target then
runs all guesses in one pass, which gives its own choice after each of them. Guesses that agree are accepted, so that
one pass writes several tokens. The text is the same as that of the target alone.

The engine writes the same tokens at every step (tests/test_reference.py). It adds caches, trees instead of chains,
batches, a choice among drafters, and compiled steps.

Shapes: T tokens of a text, D drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clover.sampling.gumbel_cache import CHOICE
from clover.sampling.numbers import gumbels

Target = Callable[[list[int]], Tensor]  # T tokens to logits [T, V]; row t predicts the token after token t
Draft = Callable[[list[int]], list[int]]  # T tokens to D guesses of the next tokens


def decode(target: Target, draft: Draft, prompt: Sequence[int], max_new_tokens: int) -> Iterator[list[int]]:
    """Continue a prompt greedily; yield the tokens that each step emits.

    Below, the target counts upwards; the draft's first two guesses are right, the third is wrong.

    >>> def target(tokens: list[int]) -> Tensor:
    ...     return torch.nn.functional.one_hot(torch.tensor(tokens) + 1, 20).float()
    >>> list(decode(target, lambda text: [text[-1] + 1, text[-1] + 2, 0], prompt=[5], max_new_tokens=7))
    [[6, 7, 8], [9, 10, 11], [12]]
    """
    text = list(prompt)
    end = len(text) + max_new_tokens
    while len(text) < end:
        # The draft guesses, and the target runs all guesses in one pass.
        guesses = draft(text)
        logits = target([*text, *guesses])[len(text) - 1 :]
        choices = logits.argmax(-1).tolist()  # the target's tokens after the text, and after each guess
        emitted = _accept(guesses, choices)[: end - len(text)]
        _check(logits[: len(emitted)])
        text += emitted
        yield emitted


def sample(
    target: Target,
    draft: Draft,
    prompt: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[list[int]]:
    """Continue a prompt by sampling; yield the tokens that each step emits. Only its choices differ from `decode`.

    A draw from softmax(logits / temperature) is the index at which logits / temperature plus independent standard
    Gumbel numbers is highest (the Gumbel-max trick). The numbers of the t-th new token are hashed from the seed and t.
    So the target's choice at each place does not depend on the guesses, and a guess is right if it equals this choice.
    The text is the same as that of sampling without a draft with this seed.
    """
    text = list(prompt)
    end = len(text) + max_new_tokens
    while len(text) < end:
        guesses = draft(text)
        logits = target([*text, *guesses])[len(text) - 1 :]
        places = len(text) - len(prompt) + torch.arange(len(logits))
        numbers = gumbels(torch.tensor(seed), CHOICE, places[:, None], torch.arange(logits.shape[1]))
        choices = (logits / temperature + numbers).argmax(-1).tolist()
        emitted = _accept(guesses, choices)[: end - len(text)]
        _check(logits[: len(emitted)])
        text += emitted
        yield emitted


def _check(logits: Tensor) -> None:
    """Raise ValueError if a logit is NaN or +inf, or if a token has no finite logit."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise ValueError("the target's logits are NaN or infinite; load it in another dtype")


def _accept(guesses: Sequence[int], choices: list[int]) -> list[int]:
    """Return the guesses before the first one that differs from the target's choice, and one more of its choices."""
    accepted = 0
    while accepted < len(guesses) and guesses[accepted] == choices[accepted]:
        accepted += 1
    return choices[: accepted + 1]
