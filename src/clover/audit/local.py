"""The audit of a target and a draft in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TypeVar

from clover.audit.distribution import from_probs
from clover.audit.findings import Findings, compare
from clover.audit.judge import SAFETY, Judge
from clover.audit.trace import trace
from clover.engine import Engine, Request
from clover.measure.timing import Decode
from clover.sampling import SamplingParams

PLAIN, GREEDY = "plain", "greedy"
Told = Callable[[int, str], None]  # tokens that were written, and by what
_Prompt = TypeVar("_Prompt")


@dataclass(frozen=True)
class Mode:
    """Requests that are decoded together, and what they are called."""

    name: str
    requests: tuple[Request, ...]


def make_modes(
    prompts: Sequence[tuple[int, ...]], new_tokens: int, temperature: float, vocab_size: int, batch_size: int
) -> list[Mode]:
    """All prompts decoded greedily; then with other parameters for every sequence, greedy ones among them.

    Few prompts are taken again: `batch_size` sequences do run together, and no parameters are left out.
    """
    greedy = tuple(Request(prompt, new_tokens) for prompt in at_least(batch_size, prompts))
    modes = [Mode(GREEDY, greedy)]
    if temperature:
        mixed = mixed_params(temperature, vocab_size)
        rows = enumerate(at_least(max(batch_size, len(mixed)), prompts))
        sampled = (
            Request(prompt, new_tokens, replace(mixed[seed % len(mixed)], seed=seed)) for seed, prompt in rows
        )
        modes.append(Mode(f"mixed, T = {temperature:g}", tuple(sampled)))
    return modes


def at_least(count: int, prompts: Sequence[_Prompt]) -> list[_Prompt]:
    """All prompts, and again from the start where they are fewer.

    >>> at_least(5, "abc"), at_least(2, "abc")
    (['a', 'b', 'c', 'a', 'b'], ['a', 'b', 'c'])
    """
    return list(islice(cycle(prompts), max(count, len(prompts))))


def mixed_params(temperature: float, vocab_size: int) -> list[SamplingParams]:
    """Every processor at least once."""
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
    """Decodes the same requests in every way and holds each against plain decoding one by one.

    Args:
        engines: by the names of their trees, all of one `TracedTarget`; `PLAIN` among them.
        batch_sizes: requests that run at once.
        reference: writes what greedy texts are compared with; plain decoding if None.
    """

    engines: dict[str, Engine]
    modes: Sequence[Mode]
    batch_sizes: Sequence[int]
    reference: Decode | None = None

    def __post_init__(self) -> None:
        target = self.engines[PLAIN].target
        self.judge = Judge(target)
        self.findings = Findings(target.dtype_name, self.judge.noise)

    @property
    def work(self) -> int:
        """Tokens that will be written at most."""
        tokens = sum(one.max_new_tokens for mode in self.modes for one in mode.requests)
        return tokens * (1 + len(self.engines) * len(self.batch_sizes))

    def run(self, told: Told = lambda tokens, doing: None) -> Findings:
        """Do it all."""
        texts = [self._reference(mode, told) for mode in self.modes]
        told(0, "measuring the rounding")
        requests = [request for mode in self.modes for request in mode.requests]
        self.judge.calibrate(requests, [text for own in texts for text in own])
        self.findings.noise = noise = self.judge.noise
        if noise.nonfinite:
            self.findings.other.append(
                f"the model's logits are no finite numbers at {noise.nonfinite} of "
                f"{noise.positions + noise.nonfinite} positions"
            )
        if noise.copy > SAFETY:
            self.findings.other.append(
                f"the engine's copy of the model is off by {noise.copy:.3g} times the model's own rounding"
            )
        for mode, reference in zip(self.modes, texts, strict=True):
            for tree, engine in self.engines.items():
                for size in self.batch_sizes:
                    if not self._wrote_reference(mode, tree, size):
                        self._way(mode, reference, tree, engine, size, told)
        self._test_distribution(texts)
        return self.findings

    def _reference(self, mode: Mode, told: Told) -> list[tuple[int, ...]]:
        """Texts that the others are compared with, one after the other; equal requests have equal ones."""
        found = dict[Request, tuple[int, ...]]()
        for request in dict.fromkeys(mode.requests):
            if self.reference is None or request.params != SamplingParams():
                (found[request],) = trace(self.engines[PLAIN], [request], 1).texts
            else:
                (found[request],) = self.reference([request]).texts
            told(len(found[request]), f"the reference, {mode.name}")
        return [found[request] for request in mode.requests]

    def _wrote_reference(self, mode: Mode, tree: str, size: int) -> bool:
        """Whether a way is the one that the texts of a mode came from."""
        by_reference = self.reference is not None and mode.name == GREEDY
        return (tree, size) == (PLAIN, 1) and not by_reference

    def _way(
        self,
        mode: Mode,
        reference: Sequence[tuple[int, ...]],
        tree: str,
        engine: Engine,
        size: int,
        told: Told,
    ) -> None:
        name = f"{tree}, batch {size}, {mode.name}"
        known = [
            (text, self.judge.read(one, text)) for one, text in zip(mode.requests, reference, strict=True)
        ]
        traced = trace(engine, mode.requests, size, known, lambda tokens: told(tokens, name))
        same = [request.params.greedy or not tree.startswith("drawn:") for request in mode.requests]
        self.findings.ways.append(compare(self.judge, name, mode.requests, reference, traced, same))

    def _test_distribution(self, texts: Sequence[Sequence[tuple[int, ...]]]) -> None:
        probs = [
            pair
            for mode, reference in zip(self.modes, texts, strict=True)
            for request, text in zip(mode.requests, reference, strict=True)
            for pair in self.judge.read(request, text).probs
        ]
        if probs:
            self.findings.p_values["plain decoding"] = from_probs(probs)
