"""What an audit finds, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median

import torch

from clover.audit.distribution import ALARM, holm
from clover.audit.judge import Flip, Judge, Noise, Reading
from clover.audit.trace import Trace
from clover.engine import Request

_MEDIAN = 3.0  # times the measured rounding, what half of the errors of an engine's logits may exceed
_SLACK = 2.0  # times the tokens that another shape changes, what an engine may change
_RARE = 1e-6  # chance of so many changed tokens
ENDED = -1  # in the place of a token where a text has ended
_Read = tuple[tuple[int, ...], Reading]  # a text and what the model says of it


@dataclass(frozen=True)
class Difference:
    """A place where a text is not what it should be.

    Args:
        way: how it was decoded.
        prompt, position: from 1.
        expected, token: what should stand there and what does; `ENDED` for none.
        gap, noise: as in `Flip`; of a server's log-probabilities where these were asked.
        defect: whether rounding does not explain it.
        exact_gap: the same gap in float32, where it was looked at.
        request, before: what was decoded, and its new tokens before this place; None for servers.
    """

    way: str
    prompt: int
    position: int
    expected: int | str
    token: int | str
    gap: float
    noise: float
    defect: bool
    exact_gap: float | None = None
    request: Request | None = None
    before: tuple[int, ...] = ()


@dataclass
class Way:
    """One way to decode all prompts of a mode, and what was found there.

    Args:
        name: tree, batch size and mode.
        worst, median: errors of its logits in units of rounding; 0 where they were not seen.
        problems: defects that are no difference of tokens, in words.
    """

    name: str
    tokens: int
    tau: float
    differences: list[Difference] = field(default_factory=list)
    worst: float = 0.0
    median: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """Everything of one audit, or of its repetition in float32.

    Args:
        p_values: of the tests of sampled tokens.
        other: defects that belong to no way, in words.
        parts: of the audit, which share its chance of a false alarm.
    """

    dtype: str
    noise: Noise
    ways: list[Way] = field(default_factory=list)
    p_values: dict[str, float] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)
    parts: int = 1

    @property
    def tokens(self) -> int:
        """New tokens that were compared."""
        return sum(way.tokens for way in self.ways)

    @property
    def differences(self) -> list[Difference]:
        """All places."""
        return [one for way in self.ways for one in way.differences]

    @property
    def near_ties(self) -> int:
        """Differences that rounding explains."""
        return sum(not one.defect for one in self.differences)

    @property
    def p_value(self) -> float | None:
        """The smallest of all tests, corrected for their number and for that of the parts; None without tests."""
        return min(1.0, self.parts * holm(list(self.p_values.values()))) if self.p_values else None

    @property
    def problems(self) -> list[str]:
        """Defects that are no difference of tokens, in words."""
        found = [*self.other, *(f"{way.name}: {problem}" for way in self.ways for problem in way.problems)]
        if self.p_value is not None and self.p_value < ALARM:
            name = min(self.p_values, key=lambda one: self.p_values[one])
            found.append(
                f"{name}: sampled tokens are not of the target's distribution (p = {self.p_value:.1e})"
            )
        return found

    @property
    def defects(self) -> int:
        """Everything that rounding and chance do not explain."""
        return sum(one.defect for one in self.differences) + len(self.problems)


def compare(
    judge: Judge,
    name: str,
    requests: Sequence[Request],
    reference: Sequence[tuple[int, ...]],
    traced: Trace,
    same_text: Sequence[bool],
) -> Way:
    """Hold one way against the reference's texts, and each of its tokens against the model.

    Args:
        same_text: per request, whether its tokens have to be those of the reference.
    """
    compared = sum(len(text) for text, same in zip(traced.texts, same_text, strict=True) if same)
    way = Way(name, compared, traced.acceptance.tau)
    changed, lost, scaled = 0, 0, []
    prompts = list(dict.fromkeys(request.prompt for request in requests))  # some are there more than once
    for number, (request, old, new) in enumerate(zip(requests, reference, traced.texts, strict=True)):
        if not same_text[number]:
            continue
        known = judge.read(request, old)
        scale = judge.noise.scale(known).tolist()
        errors = traced.errors[number]
        lost += sum(not isfinite(error) for error in errors)
        scaled += [error / unit for error, unit in zip(errors, scale, strict=False) if isfinite(error / unit)]
        reading = known if new == old else judge.read(request, new)
        changed += len(reading.flips)
        way.differences += _differences(
            judge, name, prompts.index(request.prompt) + 1, request, (old, known), (new, reading)
        )
    if scaled:
        way.worst, way.median = max(scaled), median(scaled)
    if lost:
        way.problems.append(
            f"logits at {lost} verified positions are no finite numbers, here or in the model"
        )
    way.problems += _problems(way, judge.noise, changed)
    return way


def _differences(
    judge: Judge, name: str, prompt: int, request: Request, old: _Read, new: _Read
) -> Iterator[Difference]:
    """The first place where two texts differ, what the model does not choose behind it, and defects before it."""
    (before, known), (after, reading) = old, new
    both = min(len(before), len(after))
    first = next((at for at in range(both) if before[at] != after[at]), both)

    def difference(at: int, expected: int, token: int, flips: Sequence[Flip]) -> Difference:
        gap, noise = (max((getattr(one, what) for one in flips), default=inf) for what in ("gap", "noise"))
        defect = not flips or not all(map(judge.noise.allows, flips))
        return Difference(
            name, prompt, at + 1, expected, token, gap, noise, defect, None, request, after[:at]
        )

    if first < max(len(before), len(after)):
        expected, token = (text[first] if first < len(text) else ENDED for text in (before, after))
        flips = []
        if ENDED not in (expected, token):
            flips = [one for one in (*known.flips, *reading.flips) if one.position == first]
            flips = flips or _both_chosen(judge, request, before[:first], (expected, token))
        yield difference(first, expected, token, flips)
    for flip in reading.flips:
        if flip.position > first or (flip.position < first and not judge.noise.allows(flip)):
            yield difference(flip.position, flip.expected, flip.token, [flip])


def _both_chosen(
    judge: Judge, request: Request, before: tuple[int, ...], pair: tuple[int, int]
) -> list[Flip]:
    """The flips between two tokens that the model chooses after the same text, each where another text follows.

    Its forwards of longer and shorter texts round otherwise. So it is asked once more, without what follows.
    """
    readings = [judge.read(request, (*before, token)) for token in pair]
    return [flip for reading in readings for flip in reading.flips if flip.position == len(before)]


def _problems(way: Way, noise: Noise, changed: int) -> list[str]:
    found = []
    if way.worst > noise.most:
        found.append(f"logits at a verified position are off by {way.worst:.3g} times the rounding")
    elif way.median > _MEDIAN:
        found.append(f"half of all logits are off by {way.median:.3g} times the rounding")
    likely = _SLACK * noise.changed * way.tokens + 3
    if changed and float(torch.special.gammainc(torch.tensor(float(changed)), torch.tensor(likely))) < _RARE:
        found.append(f"{changed} tokens are near-ties, where rounding makes about {likely:.0f}")
    return found
