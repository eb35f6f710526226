"""The audit of a server: the same requests with and without speculation, judged by the log-probabilities it returns.

They take the place of logits. Rounding is measured on the plain side, by the same requests beside others, and with the
text so far as the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

from scipy import stats

from clover.audit.endpoint import Endpoint, RemoteText
from clover.audit.judge import SAFETY, Rounding
from clover.audit.local import Report, at_least
from clover.audit.results import ENDED, AuditResult, Difference, MethodResult, first_difference
from clover.audit.statistics import two_samples
from clover.engine.text import HALF_CHARACTER
from clover.errors import UserError
from clover.serve import LEAST_LOGPROB

_NO_TIE = 1.0  # a gap of log-probabilities above it is no near-tie, whatever the rounding
_LEAST_NOISE = 1e-6
_LEAST_ERROR = 0.01  # of log-probabilities; below SAFETY times it nothing is a defect
_RARE = 1e-3  # chance of so many differences of sampled texts
_PROBED = 4  # positions per prompt where rounding is measured with the text so far as the prompt
_MIXED: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"frequency_penalty": 0.5}]  # of sampled texts, in turn
_DRAWS, _DRAWN_TOKENS, _DRAWN_PROMPTS = 200, 6, 4
_Requests = Sequence[dict[str, Any]]


@dataclass
class RemoteAudit:
    """Sends two endpoints the same requests.

    Args:
        drafting, plain: the same server's two sides, or two servers.
        temperature: of the sampled part; 0 leaves it out.
        sizes: requests that are sent at the same time.
        coupled: whether equal seeds have to give equal texts.
    """

    drafting: Endpoint
    plain: Endpoint
    prompts: Sequence[str]
    new_tokens: int
    temperature: float
    sizes: Sequence[int]
    coupled: bool
    report: Report = lambda tokens, doing: None
    result: AuditResult = field(default_factory=lambda: AuditResult("as served", Rounding()))

    @property
    def work(self) -> int:
        """Return about how many requests will be sent."""
        rows = (1 + self.coupled) * max(len(self.prompts), *self.sizes)
        draws = 0 if self.coupled else 2 * _DRAWS * _DRAWN_PROMPTS
        return rows * (2 + len(self.sizes)) + len(self.prompts) * _PROBED + draws

    def run(self) -> AuditResult:
        """Do it all; UserError if a server cannot be used, or does not say that it drafts where it has to."""
        self.drafting, self.plain = self.drafting.named(), self.plain.named()
        rows = at_least(max(self.sizes), self.prompts)
        self._compare("greedy", [self._request(prompt, temperature=0.0) for prompt in rows])
        if self.temperature and self.coupled:
            requests = [
                self._request(prompt, seed=seed) | _MIXED[seed % len(_MIXED)]
                for seed, prompt in enumerate(at_least(len(_MIXED), rows))
            ]
            self._compare(f"T = {self.temperature:g}", requests)
        elif self.temperature:
            self._compare_draws()
        return self.result

    def _request(self, prompt: str, **fields: Any) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": self.new_tokens, "temperature": self.temperature} | fields

    def _compare(self, mode: str, requests: _Requests) -> None:
        greedy, few = mode == "greedy", len(self.prompts)
        alone = self._complete(self.plain, requests, 1, f"plain, one by one, {mode}")
        if greedy:
            together = self._complete(self.plain, requests, max(4, *self.sizes), f"plain, together, {mode}")
            self.result.rounding = _rounding(
                _all_moved(alone, together), self._probe(requests[:few], alone[:few])
            )
        for size in self.sizes:
            method = MethodResult(f"server, {size} at a time, {mode}")
            answers = self._complete(self.drafting, requests, size, method.name)
            self._check_drafted(answers)
            method.tokens = sum(len(answer.tokens) for answer in answers)
            if nonfinite := sum(not value > LEAST_LOGPROB for one in answers for value in one.own):
                method.problems.append(f"log-probabilities of {nonfinite} tokens are no finite numbers")
            compared = 0  # tokens: after its first difference nothing of a text is
            for request, before, after in zip(requests, alone, answers, strict=True):
                first = first_difference(before.tokens, after.tokens)
                compared += len(after.tokens) if first is None else first + 1
                if first is not None:
                    number = self.prompts.index(request["prompt"]) + 1
                    method.differences.append(
                        self._difference(method.name, number, before, after, first, greedy)
                    )
            unit = self.result.rounding.worst
            worst = max(map(abs, _all_moved(alone, answers)), default=0.0)
            method.worst = worst / unit
            if method.worst > SAFETY:
                method.problems.append(f"log-probabilities are off by {worst:.3g}, rounding by {unit:.3g}")
            if not greedy:
                method.problems += self._too_many(len(method.differences), compared)
            self.result.methods.append(method)

    def _check_drafted(self, answers: Sequence[RemoteText]) -> None:
        if self.drafting.body and not any(answer.drafted for answer in answers):
            raise UserError(
                f'{self.drafting.url} does not say that it drafts, so it may not know the field "speculation"; '
                "give a server without speculation by --plain-server"
            )

    def _difference(
        self, method: str, prompt: int, before: RemoteText, after: RemoteText, first: int, greedy: bool
    ) -> Difference:
        pair, noise = [_token(before, first), _token(after, first)], self.result.rounding.pair
        gap = inf
        if greedy and before.top and None not in pair:
            # Infinite where the server does not return one of them.
            gap = abs(before.top[first].get(str(pair[0]), inf) - before.top[first].get(str(pair[1]), -inf))
        defect = greedy and gap > min(SAFETY * noise, _NO_TIE)
        expected, token = (ENDED if one is None else one for one in pair)
        return Difference(method, prompt, first + 1, expected, token, gap, noise, defect)

    def _too_many(self, differences: int, compared: int) -> list[str]:
        """Return the defect of more differences than rounding makes among sampled texts of equal seeds."""
        likely = 2 * compared * self.result.rounding.pair / self.temperature
        if not differences or stats.poisson.sf(differences - 1, likely) >= _RARE:
            return []
        return [f"{differences} texts of equal seeds differ; rounding makes about {likely:.2g} differ"]

    def _probe(self, requests: _Requests, answers: Sequence[RemoteText]) -> list[float]:
        """Return errors of log-probabilities where the text so far is the prompt, and the same token follows."""
        places = [
            (request, answer, at)
            for request, answer in zip(requests, answers, strict=True)
            for at in range(0, len(answer.own), -(-len(answer.own) // _PROBED))
        ]
        again = [
            request | {"prompt": request["prompt"] + "".join(answer.tokens[:at]), "max_tokens": 1}
            for request, answer, at in places
        ]
        found = self._complete(self.plain, again, 1, "measuring the rounding")
        rest = [replace(answer, tokens=answer.tokens[at:], own=answer.own[at:]) for _, answer, at in places]
        return _all_moved([replace(one, tokens=one.tokens[:1]) for one in rest], found)

    def _compare_draws(self) -> None:
        for number, prompt in enumerate(self.prompts[:_DRAWN_PROMPTS], start=1):
            samples = []
            for first, (name, side) in enumerate((("plain", self.plain), ("speculative", self.drafting))):
                seeds = range(first * _DRAWS, (first + 1) * _DRAWS)
                requests = [self._request(prompt, max_tokens=_DRAWN_TOKENS, seed=seed) for seed in seeds]
                samples.append(self._complete(side, requests, 8, f"draws, {name}"))
            for at in range(_DRAWN_TOKENS):
                plain, drafting = ([_token(answer, at) for answer in answers] for answers in samples)
                self.result.p_values[f"prompt {number}, token {at + 1}"] = two_samples(plain, drafting)

    def _complete(self, side: Endpoint, requests: _Requests, together: int, doing: str) -> list[RemoteText]:
        found: list[RemoteText] = []
        for start in range(0, len(requests), together):
            found += side.complete_all(requests[start : start + together], together)
            self.report(len(found) - start, doing)
        return found


def _token(answer: RemoteText, at: int) -> str | None:
    return answer.tokens[at] if at < len(answer.tokens) else None


def _all_moved(first: Sequence[RemoteText], second: Sequence[RemoteText]) -> list[float]:
    """Return by how much the log-probability of each token differs, up to where the texts differ.

    Tokens that are half a character are left out: those of other ids have the same name.
    """
    return [
        b - a
        for one, other in zip(first, second, strict=True)
        for name, a, b in zip(
            one.tokens[: first_difference(one.tokens, other.tokens)], one.own, other.own, strict=False
        )
        if HALF_CHARACTER not in name and abs(b - a) < inf
    ]


def _rounding(together: Sequence[float], probed: Sequence[float]) -> Rounding:
    """Return the rounding by errors beside other requests, and by those with the text so far as the prompt.

    Of the latter the median counts, since the text so far may have become other tokens.
    """
    typical = (sum(error**2 for error in together) / max(len(together), 1)) ** 0.5
    typical = max(typical, 1.5 * median(map(abs, probed)) if probed else 0.0)
    worst = max([4 * typical, _LEAST_ERROR, *map(abs, together)])
    pair = max(2**0.5 * typical, _LEAST_NOISE)
    return Rounding(typical, pair, worst, positions=len(together) + len(probed))
