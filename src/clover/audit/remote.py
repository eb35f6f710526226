"""The audit of a server: the same requests with and without speculation, judged by what the server tells.

Log-probabilities take the place of logits. Rounding is measured by asking plain decoding for the same in other
company: beside other requests, and with the text so far as the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

import torch

from clover.audit.distribution import two_samples
from clover.audit.endpoint import Endpoint, RemoteText
from clover.audit.findings import ENDED, Difference, Findings, Way
from clover.audit.judge import SAFETY, Noise
from clover.audit.local import Told, at_least
from clover.engine.text import HALF_CHARACTER
from clover.errors import UserError
from clover.serve import LEAST_LOGPROB

_NO_TIE = 1.0  # a gap of log-probabilities above it is none, whatever other shapes say
_LEAST_NOISE = 1e-6
_LEAST_ERROR = 0.01  # of log-probabilities; below SAFETY times it nothing is a defect
_RARE = 1e-3  # chance of so many differences of sampled texts
_ASKED_AGAIN = 4  # positions per prompt
_MIXED: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"frequency_penalty": 0.5}]  # of sampled texts, in turn
_DRAWS, _DRAWN_TOKENS, _DRAWN_PROMPTS = 200, 6, 4


@dataclass
class RemoteAudit:
    """Asks two endpoints the same.

    Args:
        drafting, plain: the same server's two sides, or two servers.
        coupled: whether equal seeds have to give equal texts.
        temperature: of the sampled part; 0 leaves it out.
        sizes: requests that are asked at the same time.
    """

    drafting: Endpoint
    plain: Endpoint
    prompts: Sequence[str]
    new_tokens: int
    temperature: float
    sizes: Sequence[int]
    coupled: bool
    findings: Findings = field(default_factory=lambda: Findings("as served", Noise()))

    @property
    def work(self) -> int:
        """Requests that will be sent, about."""
        sampled, few = bool(self.temperature), len(self.prompts)
        rows = max(few, *self.sizes)
        if sampled and self.coupled:
            rows += max(rows, len(_MIXED))
        draws = 2 * _DRAWS * min(few, _DRAWN_PROMPTS) if sampled and not self.coupled else 0
        return rows * (2 + len(self.sizes)) + few * _ASKED_AGAIN + draws

    def run(self, told: Told = lambda count, doing: None) -> Findings:
        """Do it all; UserError if a server cannot be used, or does not say that it drafts where it has to."""
        self.drafting, self.plain = self.drafting.named(), self.plain.named()
        rows = at_least(max(self.sizes), self.prompts)
        self._mode("greedy", [self._request(prompt, 0.0) for prompt in rows], told)
        if self.temperature and self.coupled:
            requests = [
                self._request(prompt, self.temperature) | {"seed": seed} | _MIXED[seed % len(_MIXED)]
                for seed, prompt in enumerate(at_least(len(_MIXED), rows))
            ]
            self._mode(f"T = {self.temperature:g}", requests, told)
        elif self.temperature:
            self._draw(told)
        return self.findings

    def _request(self, prompt: str, temperature: float) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": self.new_tokens, "temperature": temperature}

    def _mode(self, name: str, requests: Sequence[dict[str, Any]], told: Told) -> None:
        alone = self._ask(self.plain, requests, 1, told, f"plain, one by one, {name}")
        beside = self._ask(self.plain, requests, max(4, *self.sizes), told, f"plain, together, {name}")
        if name == "greedy":
            few = len(self.prompts)  # those after them are the same ones
            again = self._measure_again(requests[:few], alone[:few], told)
            self.findings.noise = _noise(self._measure(alone, beside), again)
        greedy = name == "greedy"
        for size in self.sizes:
            way = Way(f"server, {size} at a time, {name}", 0, 0.0)
            answers = self._ask(self.drafting, requests, size, told, way.name)
            if self.drafting.body and not any(answer.drafted for answer in answers):
                raise UserError(
                    f'{self.drafting.url} does not say that it drafts, so it may not know the field "speculation"; '
                    "give a server without speculation by --plain-server"
                )
            way.tokens = sum(len(answer.tokens) for answer in answers)
            lost = sum(not value > LEAST_LOGPROB for one in answers for value in one.own)
            if lost:
                way.problems.append(f"log-probabilities of {lost} tokens are no finite numbers")
            errors = self._compare(way, requests, alone, answers, greedy, told)
            worst = max([abs(error) for error in errors], default=0.0)
            unit = self.findings.noise.worst
            way.worst = worst / unit
            if way.worst > SAFETY:
                way.problems.append(f"log-probabilities are off by {worst:.3g}, rounding by {unit:.3g}")
            self.findings.ways.append(way)

    def _compare(
        self, way: Way, requests: Sequence[dict[str, Any]], old: Sequence[RemoteText], new: Sequence[RemoteText],
        greedy: bool, told: Told,
    ) -> list[float]:  # fmt: skip
        """Note the first difference of each text; returns errors of log-probabilities where texts agree."""
        errors: list[float] = []
        compared = 0  # tokens: after its first difference nothing of a text is
        for request, before, after in zip(requests, old, new, strict=True):
            first = _first_difference(before.tokens, after.tokens)
            compared += len(after.tokens) if first is None else first + 1
            errors += _moved(before, after, first)
            if first is None:
                continue
            pair = [_token(before, first), _token(after, first)]
            gap, noise = inf, 0.0
            if greedy and None not in pair:
                gap, noise = self._gap(request, before, first, pair, told)
            tie = gap <= SAFETY * max(noise, self.findings.noise.pair) and gap <= _NO_TIE
            expected, token = (ENDED if one is None else one for one in pair)
            defect, prompt = greedy and not tie, self.prompts.index(request["prompt"]) + 1
            way.differences.append(
                Difference(way.name, prompt, first + 1, expected, token, gap, noise, defect)
            )
        if not greedy and way.differences:
            likely = 2 * compared * self.findings.noise.pair / self.temperature
            chance = torch.special.gammainc(torch.tensor(float(len(way.differences))), torch.tensor(likely))
            if float(chance) < _RARE:
                count = len(way.differences)
                way.problems.append(
                    f"{count} texts of equal seeds differ; rounding makes about {likely:.2g} differ"
                )
        return errors

    def _gap(
        self, request: dict[str, Any], answer: RemoteText, at: int, pair: Sequence[str | None], told: Told
    ) -> tuple[float, float]:
        """The gap of two tokens' log-probabilities, and how far it moves when asked for again in other company."""
        if not answer.top:
            return inf, 0.0
        here = _difference(answer.top[at], pair)
        again = request | {"prompt": request["prompt"] + "".join(answer.tokens[:at]), "max_tokens": 1}
        asked = self._ask(self.plain, [again], 1, told, "a difference") + self._ask(
            self.plain, [again] * 4, 4, told, "a difference"
        )
        others = [_difference(one.top[0], pair) for one in asked if one.top]
        return abs(here), max((abs(here - other) for other in others if other < inf), default=0.0)

    def _measure(self, first: Sequence[RemoteText], second: Sequence[RemoteText]) -> list[float]:
        return [
            error
            for one, other in zip(first, second, strict=True)
            for error in _moved(one, other, _first_difference(one.tokens, other.tokens))
        ]

    def _measure_again(
        self, requests: Sequence[dict[str, Any]], answers: Sequence[RemoteText], told: Told
    ) -> list[float]:
        """Errors where the text so far is the prompt, and the same token follows."""
        places = [
            (request, answer, at)
            for request, answer in zip(requests, answers, strict=True)
            if answer.top
            for at in range(0, len(answer.tokens), -(-len(answer.tokens) // _ASKED_AGAIN))
        ]
        asked = [
            request | {"prompt": request["prompt"] + "".join(answer.tokens[:at]), "max_tokens": 1}
            for request, answer, at in places
        ]
        found = self._ask(self.plain, asked, 1, told, "measuring the rounding")
        return [
            error
            for (_, answer, at), again in zip(places, found, strict=True)
            for error in _moved(replace(answer, tokens=answer.tokens[at:], own=answer.own[at:]), again, None)
        ]

    def _draw(self, told: Told) -> None:
        for number, prompt in enumerate(self.prompts[:_DRAWN_PROMPTS], start=1):
            request = self._request(prompt, self.temperature) | {"max_tokens": _DRAWN_TOKENS}
            samples = []
            for first, (name, side) in enumerate((("plain", self.plain), ("speculative", self.drafting))):
                seeds = range(first * _DRAWS, (first + 1) * _DRAWS)
                samples.append(
                    self._ask(side, [request | {"seed": seed} for seed in seeds], 8, told, f"draws, {name}")
                )
            for at in range(_DRAWN_TOKENS):
                plain, drafting = ([_token(answer, at) for answer in answers] for answers in samples)
                self.findings.p_values[f"prompt {number}, token {at + 1}"] = two_samples(plain, drafting)

    def _ask(
        self, side: Endpoint, requests: Sequence[dict[str, Any]], together: int, told: Told, doing: str
    ) -> list[RemoteText]:
        told(0, doing)
        found = []
        for start in range(0, len(requests), together):
            found += side.ask_all(requests[start : start + together], together)
            told(len(found) - start, doing)
        return found


def _token(answer: RemoteText, at: int) -> str | None:
    return answer.tokens[at] if at < len(answer.tokens) else None


def _first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    both = min(len(one), len(other))
    first = next((at for at in range(both) if one[at] != other[at]), both)
    return None if first == len(one) == len(other) else first


def _moved(one: RemoteText, other: RemoteText, until: int | None) -> list[float]:
    """What the log-probability of each token differs by, up to where the texts differ.

    Tokens that are half a character are left out: those of other ids have the same name.
    """
    pairs = zip(one.tokens[:until], other.tokens, one.own, other.own, strict=False)
    return [
        b - a
        for name, same, a, b in pairs
        if name == same and HALF_CHARACTER not in name and abs(b - a) < inf
    ]


def _difference(top: dict[str, float], pair: Sequence[str | None]) -> float:
    """The first one's log-probability less the other's; infinite where the server does not tell one of them."""
    values = [top.get(str(token), inf) for token in pair]
    return inf if inf in values else values[0] - values[1]


def _noise(beside: Sequence[float], again: Sequence[float]) -> Noise:
    """From errors in other company, and with the text as the prompt; of these the median, since the text so far may
    have become other tokens.
    """
    typical = (sum(error**2 for error in beside) / max(len(beside), 1)) ** 0.5
    typical = max(typical, 1.5 * median(map(abs, again)) if again else 0.0)
    worst = max([4 * typical, _LEAST_ERROR, *map(abs, beside)])
    pair = max(2**0.5 * typical, _LEAST_NOISE)
    return Noise(typical, pair, worst, positions=len(beside) + len(again))
