"""The audit of a target and a draft in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, TypeVar

import torch

from clover.audit.judge import SAFETY, Judge, token_probs
from clover.audit.results import AuditResult, compare
from clover.audit.rounding import reference_logits
from clover.audit.rules import Rules
from clover.audit.statistics import chi_square, uniform_places
from clover.audit.trace import trace
from clover.engine import Engine, Request
from clover.sampling import SamplingParams

PLAIN = "plain"
_PROMPTS, _PROMPT_TOKENS, _NEW = 4, 16, 5  # of the draws
_ROWS = 64  # draws that run together
Report = Callable[[int, str], None]  # is called with the tokens that were written, and by what
_Prompt = TypeVar("_Prompt")


@dataclass(frozen=True)
class Mode:
    """Requests that are decoded together, and what they are called."""

    name: str
    requests: tuple[Request, ...]


def make_modes(
    prompts: Sequence[tuple[int, ...]], new_tokens: int, temperature: float, vocab_size: int, batch_size: int
) -> list[Mode]:
    """Return all prompts greedily; then, unless the temperature is 0, with other parameters for every sequence.

    Few prompts are repeated: `batch_size` sequences do run together, and no parameters are left out.
    """
    modes = [Mode("greedy", tuple(Request(prompt, new_tokens) for prompt in at_least(batch_size, prompts)))]
    if temperature:
        mixed = mixed_params(temperature, vocab_size)
        rows = enumerate(at_least(max(batch_size, len(mixed)), prompts))
        sampled = (
            Request(prompt, new_tokens, replace(mixed[at % len(mixed)], seed=at)) for at, prompt in rows
        )
        modes.append(Mode(f"mixed, T = {temperature:g}", tuple(sampled)))
    return modes


def at_least(count: int, prompts: Sequence[_Prompt]) -> list[_Prompt]:
    """Return all prompts, repeated from the start where they are fewer than `count`.

    >>> at_least(5, "abc"), at_least(2, "abc")
    (['a', 'b', 'c', 'a', 'b'], ['a', 'b', 'c'])
    """
    return list(islice(cycle(prompts), max(count, len(prompts))))


def mixed_params(temperature: float, vocab_size: int) -> list[SamplingParams]:
    """Return sets of sampling parameters that use every processor at least once."""
    some = vocab_size // 2
    return [
        SamplingParams(temperature=temperature),
        SamplingParams(temperature=temperature, top_p=0.9, repetition_penalty=1.2),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=temperature, top_k=20, min_p=0.02, logit_bias={some: 2.0}),
        SamplingParams(
            temperature=temperature, frequency_penalty=0.5, presence_penalty=0.5, banned_tokens=(some,)
        ),
    ]


@dataclass
class LocalAudit:
    """Decodes the same requests by every method and compares each text with plain decoding, one by one.

    Args:
        engines: by the names of their trees, all of one `TracedTarget`; `PLAIN` among them.
        batch_sizes: requests that run at once.
    """

    engines: dict[str, Engine]
    modes: Sequence[Mode]
    batch_sizes: Sequence[int]

    def __post_init__(self) -> None:
        target: Any = self.engines[PLAIN].target
        self.judge = Judge(target)
        self.result = AuditResult(target.dtype_name, self.judge.rounding)

    @property
    def work(self) -> int:
        """Return the most tokens that will be written."""
        tokens = sum(one.max_new_tokens for mode in self.modes for one in mode.requests)
        return tokens * (1 + len(self.engines) * len(self.batch_sizes))

    def run(self, report: Report = lambda tokens, doing: None) -> AuditResult:
        """Decode and compare everything but the draws."""
        texts = [self._reference(mode, report) for mode in self.modes]
        report(0, "measuring the rounding")
        requests = [request for mode in self.modes for request in mode.requests]
        self.judge.calibrate(requests, [text for own in texts for text in own])
        self.result.rounding = rounding = self.judge.rounding
        if rounding.nonfinite:
            positions = rounding.positions + rounding.nonfinite
            self.result.other.append(
                f"the model's logits are no finite numbers at {rounding.nonfinite} of {positions} positions"
            )
        if rounding.copy > SAFETY:
            self.result.other.append(
                f"the engine's copy of the model is off by {rounding.copy:.3g} times the model's own rounding"
            )
        for mode, reference in zip(self.modes, texts, strict=True):
            for tree in self.engines:
                for size in self.batch_sizes:
                    if (tree, size) != (PLAIN, 1):  # which wrote the reference
                        self._compare(mode, reference, tree, size, report)
        probs = [pair for one, own in zip(self.modes, texts, strict=True) for pair in self._probs(one, own)]
        if probs:
            self.result.p_values["plain decoding"] = uniform_places(probs)
        return self.result

    def _reference(self, mode: Mode, report: Report) -> list[tuple[int, ...]]:
        """Decode plainly one request after the other; equal requests have equal texts."""
        found = dict[Request, tuple[int, ...]]()
        for request in dict.fromkeys(mode.requests):
            (found[request],) = trace(self.engines[PLAIN], [request], 1).texts
            report(len(found[request]), f"the reference, {mode.name}")
        return [found[request] for request in mode.requests]

    def _compare(
        self, mode: Mode, reference: Sequence[tuple[int, ...]], tree: str, size: int, report: Report
    ) -> None:
        name, rows = f"{tree}, batch {size}, {mode.name}", list(zip(mode.requests, reference, strict=True))
        known = [(text, self.judge.probe(request, text)) for request, text in rows]
        traced = trace(self.engines[tree], mode.requests, size, known, lambda tokens: report(tokens, name))
        same = [request.params.greedy or self.engines[tree].tree.exact for request in mode.requests]
        self.result.methods.append(compare(self.judge, name, mode.requests, reference, traced, same))

    def _probs(self, mode: Mode, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, float]]:
        rows = zip(mode.requests, texts, strict=True)
        return [pair for request, text in rows for pair in self.judge.probe(request, text).probs]

    def test_draws(self, tree: str, params: Sequence[SamplingParams], draws: int, report: Report) -> None:
        """Test the distribution of many short texts of a tree whose sampled texts are not plain decoding's.

        The first tokens of a prompt are draws from one distribution. Later ones, bonus tokens among them, are tested
        by their places in distributions of their own.

        Args:
            params: of the prompts in turn; all sample.
            draws: texts per prompt.
        """
        prompts = dict.fromkeys(request.prompt[-_PROMPT_TOKENS:] for request in self.modes[0].requests)
        later: list[tuple[float, float]] = []
        for number, prompt in enumerate(list(prompts)[:_PROMPTS]):
            own = replace(params[number % len(params)], seed=1000 * number)
            requests = [
                Request(prompt, _NEW, replace(own, seed=own.seed + at), eos=()) for at in range(draws)
            ]
            texts = list[tuple[int, ...]]()
            for start in range(0, draws, _ROWS):
                texts += trace(self.engines[tree], requests[start : start + _ROWS], _ROWS).texts
                report(0, f"draws, {tree}")
            p_value, rest, impossible = draw_test(self.judge, requests[0], texts)
            self.result.p_values[f"{tree}, prompt {number + 1}, first token"] = p_value
            later += rest
            if impossible:
                problem = f"prompt {number + 1}: {impossible} tokens that the target gives no probability"
                self.result.other.append(f"{tree}: {problem}")
        self.result.p_values[f"{tree}, later tokens"] = uniform_places(later)


def draw_test(
    judge: Judge, request: Request, texts: Sequence[tuple[int, ...]]
) -> tuple[float, list[tuple[float, float]], int]:
    """Compare sampled texts with the model's own distributions.

    Returns the p-value of the first tokens, `token_probs` of the later ones, and how many tokens cannot be draws.
    """
    target, distinct = judge.target, list(dict.fromkeys(texts))
    places = torch.arange(len(texts[0]), device=target.device)
    probs: dict[tuple[int, ...], tuple[tuple[float, float], ...]] = {}
    first, impossible = torch.empty(0), 0
    for start in range(0, len(distinct), _ROWS):
        part = distinct[start : start + _ROWS]
        tokens = torch.tensor([[*request.prompt, *text] for text in part], device=target.device)
        for text, logits in zip(part, reference_logits(target, tokens, len(places)), strict=True):
            rules = Rules(request.prompt, torch.tensor(text, device=target.device), request.params)
            probs[text] = token_probs(rules, logits, places)
            first = rules.probs(logits[:1], places[:1])[0].cpu() if len(first) == 0 else first
            for at in (at for at, (prob, _) in enumerate(probs[text]) if prob == 0):
                moved = logits[at].double()
                moved[text[at]] += SAFETY * judge.rounding.pair
                impossible += not bool(rules.probs(moved[None], places[at : at + 1])[0, text[at]] > 0)
    counts = torch.tensor([text[0] for text in texts]).bincount(minlength=len(first))
    possible = first > 0  # rounding may move the bound of top-p; `impossible` judges the others
    p_value = chi_square(counts[possible], first[possible] * len(texts))
    return p_value, [pair for text in texts for pair in probs[text][1:]], impossible
