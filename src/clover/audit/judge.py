"""Whether the texts of a method are those of the plain side: the unpatched model, or a server that does not speculate.

A token that the plain side does not write is a mismatch. It is a near-tie if moving logits by SAFETY times the measured
rounding makes the plain side write it, else a defect. Greedy texts of an exact target have no near-ties, and its
sampled ones must be the same in all methods. Log-probabilities are compared in the same unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf, isfinite
from statistics import fmean, median

from scipy import stats

from clover.audit.model import ModelSource
from clover.audit.server import Endpoint
from clover.audit.texts import ENDED, Case, Text, Token, first_difference, logprob_errors
from clover.measure.budget import Enough, never
from clover.metrics import Acceptance

PlainSide = ModelSource | Endpoint
SAFETY = 6.0  # A near-tie's gap is at most this many times the measured rounding.
ALARM = 1e-4  # The probability of a false alarm by all tests of one audit together.
_MAX_MEDIAN = 3.0  # Half of a method's errors may be this many times the measured rounding.
_PROBES = 8  # Rounding is measured at so many places of a text.
_SIGMA = 1.5  # The deviation of normal errors, divided by the median of their absolute values.
_LEAST_SPREAD = 4.0  # The largest error is at least so many typical ones.
_RARE = 1e-3  # So improbable a number of near-ties is a defect.


@dataclass(frozen=True)
class Mismatch:
    """A token that is not the model's choice; `defect` says that rounding does not explain it.

    Prompts and positions count from 1. `expected` and `token` are what should stand there and what does, `ENDED` for
    none. `gap` is how far logits (of a server: log-probabilities) must move against each other to make it the choice;
    None if nothing does, or if that is not known.
    """

    prompt: int
    position: int
    expected: Token
    token: Token
    gap: float | None
    defect: bool


@dataclass(frozen=True)
class Rounding:
    """The rounding that was measured on the plain side's texts."""

    typical: float = 0.0  # The standard deviation of errors of a log-probability.
    pair: float = 0.0  # The same of the difference of two.
    most: float = 4 * SAFETY  # A method's largest error is at most this many times `typical`.
    changed: float = 0.0  # The share of tokens that rounding changes.
    positions: int = 0  # The positions that were measured.
    nonfinite: int = 0  # Positions left out because a number is not finite.

    def explains(self, gap: float) -> bool:
        """Return whether a mismatch is a near-tie."""
        return gap <= SAFETY * self.pair < inf


@dataclass
class MethodResult:
    """What was found in the texts of one method: a tree, a batch size and a set of sampling parameters."""

    name: str
    tokens: int = 0
    tau: float = 0.0
    mismatches: list[Mismatch] = field(default_factory=list)
    worst: float = 0.0  # error of its log-probabilities, in typical errors; 0 where none was seen
    median: float = 0.0  # likewise
    problems: list[str] = field(default_factory=list)  # Defects other than mismatches, in words.
    cut: bool = False  # The time was over before all of it was compared.

    @property
    def defects(self) -> int:
        """Count what rounding does not explain."""
        return sum(one.defect for one in self.mismatches) + len(self.problems)


@dataclass
class AuditResult:
    """All that one audit found; `p_values` are of tests of sampled tokens, `other` are defects of no one method."""

    rounding: Rounding
    methods: list[MethodResult] = field(default_factory=list)
    p_values: dict[str, float] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    @property
    def mismatches(self) -> list[Mismatch]:
        """List all mismatches."""
        return [one for method in self.methods for one in method.mismatches]

    @property
    def near_ties(self) -> int:
        """Count the mismatches that rounding explains."""
        return sum(not one.defect for one in self.mismatches)

    @property
    def p_value(self) -> float | None:
        """Return the smallest p-value, corrected for the number of tests (Bonferroni, Holm); None without tests."""
        return min(1.0, len(self.p_values) * min(self.p_values.values())) if self.p_values else None

    @property
    def problems(self) -> list[str]:
        """List the defects other than mismatches, in words."""
        found = [*self.other, *(f"{one.name}: {problem}" for one in self.methods for problem in one.problems)]
        if self.p_value is not None and self.p_value < ALARM:
            name = min(self.p_values, key=lambda one: self.p_values[one])
            found.append(f"{name}: not draws from the target's distribution (p = {self.p_value:.1e})")
        return found

    @property
    def defects(self) -> int:
        """Count what neither rounding nor chance explains."""
        return sum(one.defect for one in self.mismatches) + len(self.problems)


def measure_rounding(
    plain: PlainSide, texts: Mapping[Case, Text], together: int, temperature: float, enough: Enough = never
) -> Rounding:
    """Measure rounding: the plain side writes tokens again, next to others, with the text so far as its prompt.

    Texts have turns, place by place; once `enough` returns True after a place, the others are left out. Where few were
    measured, rounding is taken to be as much larger as their mean may be off.
    """
    probes = list[list[tuple[Text, Case]]]()
    for case, text in texts.items():
        places = range(0, len(text.logprobs), -(-len(text.logprobs) // _PROBES) or 1)
        one = [(text.after(at, 1), replace(case, start=text.tokens[:at], new_tokens=1)) for at in places]
        probes += [one] if case.params.greedy else []
    every = [probe for turn in zip_longest(*probes) for probe in turn if probe is not None]
    written = plain.write([case for _, case in every], together, enough)
    found = [(own, text) for (own, _), text in zip(every, written, strict=True) if not text.cut]
    changed = sum(first_difference(*pair) is not None for pair in found)
    differences = [error for pair in found for error in logprob_errors(*pair)]
    errors = sorted(filter(isfinite, differences)) or [0.0]
    least = plain.least_error(texts.values())
    typical = max(fmean(error * error for error in errors) ** 0.5, least)
    if not plain.goes_on:  # Some errors are of another text, since a prompt may have other tokens.
        typical = _SIGMA * median(errors)
    typical *= max(1.0, _PROBES / max(len(found), 1)) ** 0.5
    pair, unit = max(2**0.5 * typical, 1e-6), max(typical, least)
    spread = max(_LEAST_SPREAD, errors[int(0.9 * len(errors))] / unit)
    # Of sampled tokens rounding changes about pair / T: a choice changes where two scores are that close.
    share = max(changed / max(len(found), 1), pair / (temperature or 1.0))
    positions = len(list(filter(isfinite, differences)))
    return Rounding(unit, pair, SAFETY * spread, share, positions, len(differences) - positions)


@dataclass(frozen=True)
class Judge:
    """Judges the texts of methods by those of the plain side."""

    plain: PlainSide
    rounding: Rounding
    enough: Enough = never  # Once it returns True, no text goes on after a near-tie.
    _first: dict[Case, tuple[Token, ...]] = field(default_factory=dict)  # texts of the first method

    def compare(self, name: str, rows: Sequence[tuple[Case, Text, Text]]) -> MethodResult:
        """Judge the texts of one method: cases, each with the plain side's text and the method's.

        A text that the time has cut is compared as far as it goes.
        """
        result, errors, others = MethodResult(name), list[float](), 0
        result.tau = sum((text.acceptance for *_, text in rows), Acceptance()).tau
        for case, plain, text in rows:
            if text.cut:
                length = len(text.tokens)
                case, plain, result.cut = replace(case, new_tokens=length), plain.after(0, length), True
            result.tokens += len(text.tokens)
            result.mismatches += self._mismatches(case, plain, text, errors, result)
            others += self._first.setdefault(case, text.tokens) != text.tokens
        scaled = [error / self.rounding.typical for error in errors if isfinite(error)]
        if scaled:
            result.worst, result.median = max(scaled), median(scaled)
        result.problems += self._problems(result, len(errors), len(errors) - len(scaled))
        if others and self.plain.equal and not result.defects:
            result.problems.append(f"{others} texts are not those of the first method, bit by bit")
        return result

    def _mismatches(
        self, case: Case, plain: Text, text: Text, errors: list[float], result: MethodResult
    ) -> Iterator[Mismatch]:
        """Yield the mismatches of a text up to the first defect; append the errors of its log-probabilities.

        After a near-tie the plain side goes on from the token that stands there, if it can and there is time. Tokens
        that are not compared for want of time are taken off those of `result`.
        """
        errors += logprob_errors(plain, text)
        while (differs := first_difference(plain, text)) is not None:
            at, expected, token = differs
            gap = inf if ENDED in (expected, token) else self.plain.gap(case, plain, at, token)
            # The gap of a server's sampled texts is not known; too many of their mismatches are a defect.
            near = gap is None or self.rounding.explains(gap)
            defect = not near or (self.plain.equal and case.params.greedy)
            position, gap = len(case.start) + at + 1, None if gap == inf else gap
            yield Mismatch(case.number, position, expected, token, gap, defect)
            if defect or not self.plain.goes_on or at + 1 == len(text.tokens):
                return
            start, left = (*case.start, *text.tokens[: at + 1]), case.new_tokens - at - 1
            case, text = replace(case, start=start, new_tokens=left), text.after(at + 1)
            (plain,) = self.plain.write([case], 1, self.enough)
            if plain.cut:
                result.cut, result.tokens = True, result.tokens - len(text.tokens[len(plain.tokens) :])
                text = text.after(0, len(plain.tokens))
            errors += logprob_errors(plain, text)

    def _problems(self, result: MethodResult, compared: int, nonfinite: int) -> Iterator[str]:
        if nonfinite:
            yield f"log-probabilities of {nonfinite} tokens are not finite, here or in the model"
        if result.worst > self.rounding.most:
            yield f"log-probabilities are off by {result.worst:.3g} times the rounding"
        elif result.median > _MAX_MEDIAN:
            yield f"half of all log-probabilities are off by {result.median:.3g} times the rounding"
        changed, likely = len(result.mismatches), 3 * self.rounding.changed * compared
        if changed and stats.poisson.sf(changed - 1, likely) < _RARE:
            yield f"{changed} tokens are mismatches, where rounding makes about {likely:.2g}"
