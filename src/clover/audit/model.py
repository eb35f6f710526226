"""The plain side of an audit in this process: the unpatched model of transformers, without the engine.

With int8 weights it is the copy of the model's structure with these weights.

It writes token by token with transformers' own cache, and applies sampling parameters by `clover.audit.rules`. So the
engine's trees, cache and sampler never judge themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from clover.audit.rules import Rules
from clover.audit.texts import TOP, Case, Text, Token, Write
from clover.measure.budget import Enough, never
from clover.measure.report.goodness_of_fit import uniform_places
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.target.structure import cache_argument, cache_of

_BEST = 2 * TOP  # tokens with log-probabilities: enough to include those of the engine
_PROMPTS, _PROMPT_TOKENS, _NEW, _TOGETHER, _PART = 4, 16, 5, 64, 256  # the sizes of the test of draws


@dataclass(frozen=True)
class ModelSource:
    """Texts of the unpatched model; `test_draws` requests `draws` texts for each prompt."""

    target: TargetModel
    draws: int = 1000
    goes_on = True  # It can continue after tokens that it has not chosen.
    _places: list[tuple[float, float]] = field(default_factory=list)  # one pair for each sampled token

    @property
    def equal(self) -> bool:
        """Return True if greedy texts must be equal, without near-ties."""
        return self.target.exact

    def least_error(self, texts: Iterable[Text]) -> float:
        """Return the smallest error from rounding the largest log-probability to the dtype.

        If logits are exact, only the log-probabilities themselves are rounded.
        """
        values = (value for text in texts for entry in text.logprobs for value in entry.values())
        dtype = torch.float32 if self.equal else self.target.dtype
        eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        return eps / 4 * max(map(abs, filter(isfinite, values)), default=1.0)

    def write(self, cases: Sequence[Case], together: int, enough: Enough = never) -> list[Text]:
        """Write each case alone, as one row of `together` equal rows, because rounding depends on their number.

        Once `enough` returns True after a token, the text ends there, and later texts are not begun.
        """
        texts = list[Text]()
        for case in cases:
            over = bool(texts) and enough()
            texts.append(Text((), cut=True) if over else self._write(case, together, enough))
        return texts

    @torch.inference_mode()
    def _write(self, case: Case, rows: int, enough: Enough) -> Text:
        model: Any = self.target.running
        rules, cache_name, cache = Rules(case.prompt, case.params), cache_argument(model), None
        new, logprobs, run = list(case.start), [], [*case.prompt, *case.start]
        while not (ended := len(logprobs) == case.new_tokens or new[-1:] in self._ends):
            if logprobs and enough():
                break
            tokens = torch.tensor([run], device=self.target.device).expand(rows, -1)
            output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **{cache_name: cache})
            cache, logits = cache_of(output), output.logits[0, -1]
            run = [rules.choice(logits, new)]
            if not (case.params.greedy or case.start):
                self._places.append(rules.tail_masses(logits, new, run[0]))
            new += run
            known = logits.float().log_softmax(-1)
            best = [*known.topk(min(_BEST, len(known))).indices.tolist(), *run]
            logprobs.append(dict(zip(best, known[best].tolist(), strict=True)))
        return Text(tuple(new[len(case.start) :]), tuple(logprobs), cut=not ended)

    @property
    def _ends(self) -> list[list[int]]:
        """Return the end-of-sequence tokens, each as a list of one token."""
        return [[token] for token in self.target.eos_token_ids]

    def test_written(self) -> dict[str, float]:
        """Return the p-value that its sampled tokens are draws from its distributions; empty without sampled tokens."""
        return {"plain decoding": uniform_places(self._places)} if self._places else {}

    def gap(self, case: Case, plain: Text, at: int, token: Token) -> float | None:
        """Return how far logits must move until `token` follows the first `at` tokens of a text."""
        new = (*case.start, *plain.tokens[:at])
        logits = self.logits(torch.tensor([[*case.prompt, *new, token]]), 1)[0, 0]
        return Rules(case.prompt, case.params).gap(logits, new, token)

    @torch.inference_mode()
    def logits(self, texts: Tensor, new: int) -> Tensor:
        """Return the logits [B, n, V] of the last n tokens of texts Long [B, T], in one forward."""
        model: Any = self.target.running
        tokens = texts[:, :-1].to(self.target.device)
        return model(input_ids=tokens, use_cache=False, logits_to_keep=new).logits[:, -new:]

    def test_draws(
        self,
        name: str,
        write: Write,
        cases: Sequence[Case],
        temperature: float,
        rounding: float,
        enough: Enough = never,
    ) -> tuple[dict[str, float], list[str]]:
        """Compare many short sampled texts of a few prompts with the model's distributions.

        Return p-values, none if the time was over before any text was drawn, and defects in words. Logits may move by
        `rounding`. A part that is cut by the time limit does not count, because short texts would be overrepresented.
        """
        hot = SamplingParams(temperature=temperature)
        sets = hot, replace(hot, top_p=0.9, repetition_penalty=1.2)
        places, problems = list[list[tuple[float, float]]](), list[str]()
        prompts = list(dict.fromkeys(case.prompt[-_PROMPT_TOKENS:] for case in cases))[:_PROMPTS]
        for start, (number, prompt) in product(range(0, self.draws, _PART), enumerate(prompts)):
            own, first = sets[number % len(sets)], self.draws * number
            seeds = range(first + start, first + min(start + _PART, self.draws))
            drawn = [Case(number, prompt, _NEW, replace(own, seed=seed), drawn=True) for seed in seeds]
            written = write(drawn, _TOGETHER, enough)
            if any(text.cut for text in written):
                break
            texts = [text.tokens for text in written]
            found, impossible = self.places(Rules(prompt, own), texts, rounding)
            places += found
            if impossible:
                problems.append(f"{name}: {impossible} tokens after prompt {number + 1} have probability 0")
        first, later = (
            [place for text in places for place in text[part]] for part in (slice(1), slice(1, None))
        )
        if not places:
            return {}, problems
        names = (f"{name}, first tokens", f"{name}, later tokens")  # The first ones follow the prefill.
        return dict(zip(names, map(uniform_places, (first, later)), strict=True)), problems

    def places(
        self, rules: Rules, texts: Sequence[tuple[int, ...]], rounding: float
    ) -> tuple[list[list[tuple[float, float]]], int]:
        """Return `Rules.tail_masses` of each token of texts of equal length, and the number of impossible tokens."""
        distinct, impossible = list(dict.fromkeys(texts)), 0
        found: dict[tuple[int, ...], list[tuple[float, float]]] = {}
        for start in range(0, len(distinct), _TOGETHER):
            part = distinct[start : start + _TOGETHER]
            whole = torch.tensor([[*rules.prompt, *text] for text in part])
            for text, rows in zip(part, self.logits(whole, len(part[0])), strict=True):
                found[text] = [rules.tail_masses(row, text[:at], text[at]) for at, row in enumerate(rows)]
                for at in (at for at, (prob, _) in enumerate(found[text]) if not prob > 0):
                    moved = rows[at].to(torch.float64, copy=True)  # Rounding may move the bound of top-p.
                    moved[text[at]] += rounding
                    impossible += not rules.tail_masses(moved, text[:at], text[at])[0] > 0
        return [found[text] for text in texts], impossible
