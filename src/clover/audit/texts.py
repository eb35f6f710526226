"""The texts that an audit compares, and the engine as a source of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, zip_longest
from math import sqrt
from typing import Any

from clover.engine import Engine, Request, StepEvent
from clover.engine.text import HALF_CHARACTER
from clover.measure.budget import Enough, never
from clover.metrics import Acceptance
from clover.sampling import SamplingParams

Token = Any  # the id of a token, or the text that a server returns for it
ENDED = -1  # the place of a token after the end of a text
TOP = 20  # the number of tokens whose log-probabilities an engine returns
_DEFAULT = SamplingParams()


@dataclass(frozen=True)
class Case:
    """One text to be written."""

    number: int  # the number of its prompt, from 1
    prompt: Any  # token ids, or a string for a server
    new_tokens: int
    params: SamplingParams = _DEFAULT
    start: tuple[Token, ...] = ()  # new tokens after which the text continues
    drawn: bool = False  # one of many draws of exactly `new_tokens` tokens, without log-probabilities


@dataclass(frozen=True)
class Text:
    """The new tokens of one text.

    `logprobs` has for each token its log-probability and those of the most probable tokens; it is empty if the source
    returns none. `cut` is True if the time was over before the end of the text.
    """

    tokens: tuple[Token, ...]
    logprobs: tuple[Mapping[Token, float], ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    cut: bool = False

    def after(self, at: int, count: int | None = None) -> Text:
        """Return the text after the first `at` tokens, or only `count` tokens of it."""
        part = slice(at, None if count is None else at + count)
        return Text(self.tokens[part], self.logprobs[part])


# The `write` of a source, from cases, the number decoded at once, and a function that returns True when time is over.
Write = Callable[[Sequence[Case], int, Enough], list[Text]]


@dataclass(frozen=True)
class EngineSource:
    """Texts of an engine in this process."""

    engine: Engine

    @property
    def exact(self) -> bool:
        """Return True if equal seeds give the sampled texts of plain decoding; False for drawn trees."""
        return self.engine.tree.exact

    def write(self, cases: Sequence[Case], together: int, enough: Enough = never) -> list[Text]:
        """Decode all cases, until `enough` returns True after a step; UserError as `Engine.run`."""
        events: list[list[StepEvent]] = [[] for _ in cases]
        requests = [
            Request(case.prompt, case.new_tokens, case.params, eos=(), logprobs=None)
            if case.drawn
            else Request(case.prompt, case.new_tokens, case.params, logprobs=TOP)
            for case in cases
        ]
        with closing(self.engine.run(requests, max_sequences=together)) as steps:
            for event in steps:
                events[event.index].append(event)
                if enough():
                    break
        return [_text(own) for own in events]


def _text(events: Sequence[StepEvent]) -> Text:
    tokens = tuple(token for event in events for token in event.tokens)
    entries = [entry for event in events for entry in event.logprobs]
    logprobs = tuple(
        dict(one.top) | {token: one.logprob} for token, one in zip(tokens, entries, strict=False)
    )
    generation = events[-1].generation if events else None
    if generation is None:
        return Text(tokens, logprobs, cut=True)
    return Text(tokens, logprobs, generation.acceptance)


def make_modes(
    prompts: Sequence[Any], new_tokens: int, sampled: Sequence[SamplingParams], size: int
) -> dict[str, list[Case]]:
    """Return the cases of each mode: all prompts greedily; then each with one of `sampled` in turn, and a seed.

    If there are few prompts, they are repeated, so that `size` texts run together and all parameters are used.
    """
    modes = {"greedy": [_DEFAULT]} | ({f"mixed, T = {sampled[0].temperature:g}": sampled} if sampled else {})
    found = {}
    for mode, sets in modes.items():
        rows = islice(cycle(enumerate(prompts, start=1)), max(size, len(sets), len(prompts)))
        found[mode] = [
            Case(number, prompt, new_tokens, params if params == _DEFAULT else replace(params, seed=seed))
            for seed, ((number, prompt), params) in enumerate(zip(rows, cycle(sets), strict=False))
        ]
    return found


def mixed_params(temperature: float, vocab_size: int) -> list[SamplingParams]:
    """Return sets of sampling parameters that use every processor at least once."""
    some, hot = vocab_size // 2, SamplingParams(temperature=temperature)
    return [
        hot,
        replace(hot, top_p=0.9, repetition_penalty=1.2),
        SamplingParams(repetition_penalty=1.3),
        replace(hot, top_k=20, min_p=0.02, logit_bias={some: 2.0}),
        replace(hot, frequency_penalty=0.5, presence_penalty=0.5, banned_tokens=(some,)),
    ]


def first_difference(plain: Text, text: Text) -> tuple[int, Token, Token] | None:
    """Return the first difference of two texts: its place and both tokens, ENDED for none. None if they are equal."""
    rows = enumerate(zip_longest(plain.tokens, text.tokens, fillvalue=ENDED))
    return next(((at, one, other) for at, (one, other) in rows if one != other), None)


def logprob_errors(plain: Text, text: Text) -> Iterator[float]:
    """Yield the error of the log-probabilities at each place, up to the first difference; NaN if one is not finite.

    It is the root mean square difference over the tokens that both texts have. Tokens of half a character are left out,
    because a server returns the same text for several of them.
    """
    rows = zip(plain.tokens, text.tokens, plain.logprobs, text.logprobs, strict=False)
    for token, own, expected, found in rows:
        if token != own:
            return
        both = [(found[name], expected[name]) for name in found.keys() & expected.keys()]
        if HALF_CHARACTER not in str(token):
            yield sqrt(sum(0.0 if a == b else (a - b) * (a - b) for a, b in both) / len(both))
