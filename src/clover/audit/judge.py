"""Compare a method's texts with those of the plain side: the unpatched model, or a server without speculation.

A token that the plain side does not write is a mismatch. It is a near-tie if moving logits by SAFETY times the measured
rounding makes the plain side write it, otherwise a defect. Greedy texts of an exact target have no near-ties, and its
sampled texts must be equal in all methods. Errors of log-probabilities are measured in units of rounding, too.
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
_MAX_MEDIAN = 3.0  # A method's median error may be this many times the measured rounding.
_PROBES = 8  # Rounding is measured at this many places of a text.
_SIGMA = 1.5  # the standard deviation of normal errors, divided by the median of their absolute values
_LEAST_SPREAD = 4.0  # The largest error is assumed to be at least this many typical ones.
_RARE = 1e-3  # A number of near-ties with a lower probability is a defect.


@dataclass(frozen=True)
class Mismatch:
    """A token that is not the model's choice; `defect` is True if rounding does not explain it.

    Prompts and positions count from 1. `expected` is the model's token and `token` the method's, `ENDED` for none.
    `gap` is how far logits (of a server: log-probabilities) must move against each other to make `token` the choice;
    None if no move does, or if it is unknown.
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

    typical: float = 0.0  # the standard deviation of the errors of a log-probability
    pair: float = 0.0  # the same for the difference of two log-probabilities
    most: float = 4 * SAFETY  # A method's largest error may be this many times `typical`.
    changed: float = 0.0  # the share of tokens that rounding changes
    positions: int = 0  # the measured positions
    nonfinite: int = 0  # positions left out because a number is not finite

    def explains(self, gap: float) -> bool:
        """Return True if a mismatch with this gap is a near-tie."""
        return gap <= SAFETY * self.pair < inf


@dataclass
class MethodResult:
    """The findings in the texts of one method: a tree, a batch size and a set of sampling parameters."""

    name: str
    tokens: int = 0
    tau: float = 0.0
    mismatches: list[Mismatch] = field(default_factory=list)
    worst: float = 0.0  # the largest error of its log-probabilities, in typical errors; 0 without errors
    median: float = 0.0  # the median error in the same unit
    problems: list[str] = field(default_factory=list)  # defects other than mismatches, in words
    cut: bool = False  # whether the time was over before all texts were compared

    @property
    def defects(self) -> int:
        """Count the findings that rounding does not explain."""
        return sum(one.defect for one in self.mismatches) + len(self.problems)


@dataclass
class AuditResult:
    """All findings of one audit: `p_values` of tests of sampled tokens; `other` has defects of no single method."""

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
        """Count the findings that neither rounding nor chance explains."""
        return sum(one.defect for one in self.mismatches) + len(self.problems)


def measure_rounding(
    plain: PlainSide, texts: Mapping[Case, Text], together: int, temperature: float, enough: Enough = never
) -> Rounding:
    """Measure rounding: the plain side writes tokens again, batched with others, with the text so far as the prompt.

    The places of all texts are measured in turn; once `enough` returns True, the others are left out. If few places
    were measured, the rounding is raised by the uncertainty of their mean.
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
    if not plain.goes_on:  # Some errors come from another text, because a prompt may have other tokens.
        typical = _SIGMA * median(errors)
    typical *= max(1.0, _PROBES / max(len(found), 1)) ** 0.5
    pair, unit = max(2**0.5 * typical, 1e-6), max(typical, least)
    spread = max(_LEAST_SPREAD, errors[int(0.9 * len(errors))] / unit)
    # Rounding changes a share of about pair / T of sampled tokens: those for which two scores are that close.
    share = max(changed / max(len(found), 1), pair / (temperature or 1.0))
    positions = len(list(filter(isfinite, differences)))
    return Rounding(unit, pair, SAFETY * spread, share, positions, len(differences) - positions)


@dataclass(frozen=True)
class Judge:
    """Compares the texts of methods with those of the plain side."""

    plain: PlainSide
    rounding: Rounding
    enough: Enough = never  # Once it returns True, no text is continued after a near-tie.
    _first: dict[Case, tuple[Token, ...]] = field(default_factory=dict)  # texts of the first method

    def compare(self, name: str, rows: Sequence[tuple[Case, Text, Text]]) -> MethodResult:
        """Judge the texts of one method: rows of a case, the plain side's text and the method's text.

        A text that was cut by the time limit is compared up to its end.
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

        After a near-tie the plain side continues after the method's token, if it can and there is time. Tokens that are
        not compared for lack of time are subtracted from those of `result`.
        """
        errors += logprob_errors(plain, text)
        while (differs := first_difference(plain, text)) is not None:
            at, expected, token = differs
            gap = inf if ENDED in (expected, token) else self.plain.gap(case, plain, at, token)
            # The gap is unknown for sampled texts of a server; too many of their mismatches are a defect.
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
            yield f"{changed} tokens are mismatches, but rounding explains only about {likely:.2g}"
