"""Many short sampled texts of a few prompts, and whether they are of the target's distribution.

This is for ways to decode whose texts are not plain decoding's even with the same seeds: drawn trees, transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from clover.audit.distribution import chi_square, from_probs, two_samples
from clover.audit.judge import SAFETY, Judge, token_probs
from clover.audit.noise import reference_logits
from clover.audit.rules import Rules
from clover.engine import Request
from clover.sampling import SamplingParams

_PROMPTS, _PROMPT_TOKENS, _NEW = 4, 16, 5
_ROWS = 64  # that run together
Texts = list[tuple[int, ...]]
Decode = Callable[[Sequence[Request]], Sequence[tuple[int, ...]]]


def draw_requests(
    prompts: Sequence[tuple[int, ...]], params: Sequence[SamplingParams], draws: int
) -> list[list[Request]]:
    """Per prompt as many requests with seeds of their own; prompt i has params i, from the start again at the end."""
    ends = list(dict.fromkeys(prompt[-_PROMPT_TOKENS:] for prompt in prompts))[:_PROMPTS]
    return [
        [
            Request(prompt, _NEW, replace(params[at % len(params)], seed=1000 * at + seed), eos=())
            for seed in range(draws)
        ]
        for at, prompt in enumerate(ends)
    ]


def decode_all(
    decode: Decode, requests: Sequence[Sequence[Request]], doing: str, told: Callable[[int, str], None]
) -> list[Texts]:
    """The texts of each prompt."""
    found: list[Texts] = []
    for own in requests:
        found.append([])
        for start in range(0, len(own), _ROWS):
            found[-1] += decode(own[start : start + _ROWS])
            told(0, doing)
    return found


def against_target(
    judge: Judge, requests: Sequence[Sequence[Request]], texts: Sequence[Texts]
) -> tuple[dict[str, float], list[str]]:
    """Tests against the model's own probabilities: p-values, and tokens that cannot have been drawn, in words.

    The first tokens of a prompt are draws from one distribution. Later ones, bonus tokens among them, are tested by
    their places in distributions of their own.
    """
    p_values, problems, later = {}, [], []
    for number, (own, written) in enumerate(zip(requests, texts, strict=True), start=1):
        first, rest, impossible = _probs(judge, own[0], written)
        counts = torch.tensor([text[0] for text in written]).bincount(minlength=len(first))
        expected = first.cpu() * len(written)
        possible = expected > 0  # rounding may move the bound of top-p; `impossible` judges the others
        p_values[f"prompt {number}, first token"] = chi_square(counts[possible], expected[possible])
        later += rest
        if impossible:
            problems.append(f"prompt {number}: {impossible} tokens that the target gives no probability")
    return p_values | {"later tokens": from_probs(later)}, problems


def against_sample(texts: Sequence[Texts], others: Sequence[Texts]) -> dict[str, float]:
    """Two-sample tests of the tokens at every position."""
    return {
        f"prompt {number}, token {at + 1}": two_samples([one[at] for one in own], [one[at] for one in other])
        for number, (own, other) in enumerate(zip(texts, others, strict=True), start=1)
        for at in range(_NEW)
    }


def _probs(judge: Judge, request: Request, texts: Texts) -> tuple[Tensor, list[tuple[float, float]], int]:
    """The first token's distribution [V], `token_probs` of later ones, and how many of all cannot have been drawn."""
    target, distinct = judge.target, list(dict.fromkeys(texts))
    device, places = target.device, torch.arange(_NEW, device=target.device)
    found: dict[tuple[int, ...], tuple[tuple[float, float], ...]] = {}
    first, impossible = torch.empty(0), 0
    for start in range(0, len(distinct), _ROWS):
        part = distinct[start : start + _ROWS]
        tokens = torch.tensor([[*request.prompt, *text] for text in part], device=device)
        for text, logits in zip(part, reference_logits(target, tokens, _NEW), strict=True):
            rules = Rules(request.prompt, torch.tensor(text, device=device), request.params)
            found[text] = token_probs(rules, logits, places)
            first = rules.probs(logits[:1], places[:1])[0] if len(first) == 0 else first
            for at in (at for at, (prob, _) in enumerate(found[text]) if prob == 0):
                moved = logits[at].double()
                moved[text[at]] += SAFETY * judge.noise.pair
                impossible += not bool(rules.probs(moved[None], places[at : at + 1])[0, text[at]] > 0)
    return first, list(chain(*(found[text][1:] for text in texts))), impossible
