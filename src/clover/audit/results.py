"""What an audit finds, and how the texts of one method are compared with the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median

from scipy import stats

from clover.audit.judge import Judge, LogitProbe, Mismatch, Rounding
from clover.audit.statistics import ALARM
from clover.audit.trace import Trace
from clover.engine import Request

_MAX_MEDIAN = 3.0  # times the measured rounding, that half of the errors of an engine's logits may exceed
_SLACK = 2.0  # times the tokens that another shape changes, that an engine may change
_RARE = 1e-6  # chance of so many changed tokens
ENDED = -1  # in the place of a token where a text has ended
_Probed = tuple[tuple[int, ...], LogitProbe]  # a text and the model's logits along it


@dataclass(frozen=True)
class Difference:
    """A place where a text is not what it should be; `defect` says that rounding does not explain it.

    Prompts and positions count from 1. `expected` and `token` are what should stand there and what does, `ENDED` for
    none; `gap` and `noise` are as in `Mismatch`, of log-probabilities if a server is audited.
    """

    method: str
    prompt: int
    position: int
    expected: int | str
    token: int | str
    gap: float
    noise: float
    defect: bool


@dataclass
class MethodResult:
    """What was found in the texts of one method: a tree, a batch size and a set of sampling parameters.

    `worst` and `median` are errors of its logits in units of rounding, 0 where they were not seen; `problems` are
    defects other than differences of tokens, in words.
    """

    name: str
    tokens: int = 0
    tau: float = 0.0
    differences: list[Difference] = field(default_factory=list)
    worst: float = 0.0
    median: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass
class AuditResult:
    """All that one audit found; `p_values` are of tests of sampled tokens, `other` are defects of no one method."""

    dtype: str
    rounding: Rounding
    methods: list[MethodResult] = field(default_factory=list)
    p_values: dict[str, float] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Count the new tokens that were compared."""
        return sum(method.tokens for method in self.methods)

    @property
    def differences(self) -> list[Difference]:
        """List all differences."""
        return [one for method in self.methods for one in method.differences]

    @property
    def near_ties(self) -> int:
        """Count the differences that rounding explains."""
        return sum(not one.defect for one in self.differences)

    @property
    def p_value(self) -> float | None:
        """Return the smallest p-value, corrected for the number of tests (Bonferroni, Holm); None without tests."""
        return min(1.0, len(self.p_values) * min(self.p_values.values())) if self.p_values else None

    @property
    def problems(self) -> list[str]:
        """List the defects other than differences of tokens, in words."""
        found = [*self.other, *(f"{one.name}: {problem}" for one in self.methods for problem in one.problems)]
        if self.p_value is not None and self.p_value < ALARM:
            name = min(self.p_values, key=lambda one: self.p_values[one])
            found.append(
                f"{name}: sampled tokens are not of the target's distribution (p = {self.p_value:.1e})"
            )
        return found

    @property
    def defects(self) -> int:
        """Count what neither rounding nor chance explains."""
        return sum(one.defect for one in self.differences) + len(self.problems)


def compare(
    judge: Judge,
    name: str,
    requests: Sequence[Request],
    reference: Sequence[tuple[int, ...]],
    traced: Trace,
    same_text: Sequence[bool],
) -> MethodResult:
    """Compare the texts of one method with the reference's, and each of its tokens with the model's own choice.

    `same_text` says per request whether its tokens have to be those of the reference.
    """
    result = MethodResult(name, tau=traced.acceptance.tau)
    changed, nonfinite, scaled = 0, 0, []
    prompts = list(dict.fromkeys(request.prompt for request in requests))  # some are there more than once
    rows = zip(requests, reference, traced.texts, traced.errors, same_text, strict=True)
    for request, old, new, errors, same in rows:
        if not same:
            continue
        known = judge.probe(request, old)
        probe = known if new == old else judge.probe(request, new)
        units = judge.rounding.units(known).tolist()
        result.tokens += len(new)
        nonfinite += sum(not isfinite(error) for error in errors)
        scaled += [error / unit for error, unit in zip(errors, units, strict=False) if isfinite(error / unit)]
        changed += len(probe.mismatches)
        number = prompts.index(request.prompt) + 1
        result.differences += _differences(judge, name, number, request, (old, known), (new, probe))
    if scaled:
        result.worst, result.median = max(scaled), median(scaled)
    if nonfinite:
        result.problems.append(
            f"logits at {nonfinite} verified positions are no finite numbers, here or in the model"
        )
    result.problems += _problems(result, judge.rounding, changed)
    return result


def _differences(
    judge: Judge, method: str, prompt: int, request: Request, old: _Probed, new: _Probed
) -> Iterator[Difference]:
    """Yield the first place where two texts differ, later tokens that the model does not choose, earlier defects."""
    (before, known), (after, probe) = old, new
    first = first_difference(before, after)
    if first is not None:
        expected, token = (text[first] if first < len(text) else ENDED for text in (before, after))
        mismatches = [one for one in (*known.mismatches, *probe.mismatches) if one.position == first]
        if ENDED in (expected, token):
            mismatches = []
        elif not mismatches:
            mismatches = _both_chosen(judge, request, before[:first], (expected, token))
        gap = max((one.gap for one in mismatches), default=inf)
        noise = max((one.noise for one in mismatches), default=inf)
        defect = not mismatches or not all(map(judge.rounding.explains, mismatches))
        yield Difference(method, prompt, first + 1, expected, token, gap, noise, defect)
    end = len(after) if first is None else first
    for one in probe.mismatches:
        explained = judge.rounding.explains(one)
        if one.position > end or (one.position < end and not explained):
            place = (method, prompt, one.position + 1, one.expected, one.token)
            yield Difference(*place, one.gap, one.noise, not explained)


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the first place where two texts differ, where one may have ended; None if they are equal."""
    both = min(len(one), len(other))
    first = next((at for at in range(both) if one[at] != other[at]), both)
    return None if first == len(one) == len(other) else first


def _both_chosen(
    judge: Judge, request: Request, before: tuple[int, ...], pair: tuple[int, ...]
) -> list[Mismatch]:
    """Return the mismatches between two tokens that the model chooses after one text, if another text follows each.

    Its forwards of longer and shorter texts round differently; so they are probed again without what follows.
    """
    probes = [judge.probe(request, (*before, token)) for token in pair]
    return [one for probe in probes for one in probe.mismatches if one.position == len(before)]


def _problems(result: MethodResult, rounding: Rounding, changed: int) -> list[str]:
    problems = []
    if result.worst > rounding.most:
        problems.append(f"logits at a verified position are off by {result.worst:.3g} times the rounding")
    elif result.median > _MAX_MEDIAN:
        problems.append(f"half of all logits are off by {result.median:.3g} times the rounding")
    likely = _SLACK * rounding.changed * result.tokens + 3
    if changed and stats.poisson.sf(changed - 1, likely) < _RARE:
        problems.append(f"{changed} tokens are near-ties, where rounding makes about {likely:.0f}")
    return problems
