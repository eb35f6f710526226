"""Whether each token of a text is the one that the model itself chooses after all that precedes it.

A token that is not is a near-tie if moving the logits by what rounding was measured to move them, times SAFETY, makes
it the choice; else it is a defect. The engine's logits are compared with the model's own in the same unit.

Shapes: n new tokens, K shapes of a forward, M tokens whose logits are compared, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from clover.audit.rounding import other_shapes, reference_logits
from clover.audit.rules import Rules
from clover.engine import Request
from clover.target import TargetModel

SAFETY = 6.0  # times the measured rounding
_MIN_STEP = 1e-30  # a unit of errors where every logit is 0; its square is not 0 yet
_BEST, _OTHERS = 48, 48  # tokens whose logits are compared: the most probable ones, and some of all


@dataclass(frozen=True)
class Mismatch:
    """A new token, at `position` from 0, that is not the model's choice, which is `expected`.

    `gap` is how far logits must move against each other to make it the choice, infinite if nothing does; `noise` is
    how far they move between shapes of the forward here.
    """

    position: int
    token: int
    expected: int
    gap: float
    noise: float


@dataclass(frozen=True)
class LogitProbe:
    """The model's own logits at each new token of one text.

    Args:
        mismatches: tokens that it does not choose.
        columns, logits: the M tokens compared, Long [n, M], and the reference's logits there, float64.
        errors: root mean square of what each other shape's logits differ by, float64 [K, n].
        pairs: what the difference of the best two logits differs by, float64 [K, n].
        step: float64 [n], what rounding the largest logit to its dtype may change: about the least there is.
        changed: how many tokens each other shape chooses differently, [K].
        probs: of the tokens that stand there, and those of all that are more probable; empty if greedy.
    """

    mismatches: tuple[Mismatch, ...]
    columns: Tensor
    logits: Tensor
    errors: Tensor
    pairs: Tensor
    step: Tensor
    changed: tuple[int, ...]
    probs: tuple[tuple[float, float], ...] = ()

    @property
    def finite(self) -> Tensor:
        """Return where the compared logits of every shape are finite numbers, Bool [n]."""
        return self.errors.isfinite().all(0)


@dataclass
class Rounding:
    """The rounding that was measured on all texts of the reference.

    Args:
        logits: root mean square of the logits' errors.
        pair: root mean square of the errors of a difference of two.
        worst: the largest error of one shape in units of the others'.
        changed: the largest share of tokens that a shape changes.
        positions, nonfinite: how many were measured, and left out because a logit of some shape is no finite number.
        copy: root mean square of the errors of the engine's copy of the model, in units of the unpatched model's.
    """

    logits: float = 0.0
    pair: float = 0.0
    worst: float = 1.0
    changed: float = 0.0
    positions: int = 0
    nonfinite: int = 0
    copy: float = 0.0

    @classmethod
    def measure(cls, probes: Sequence[LogitProbe]) -> Rounding:
        """Measure rounding on the positions of these texts where all logits are finite numbers."""
        errors = torch.cat([one.errors[:, one.finite] for one in probes], 1)
        pairs = torch.cat([one.pairs[:, one.finite] for one in probes], 1)
        step = torch.cat([one.step[one.finite] for one in probes])
        tokens, positions = sum(len(one.finite) for one in probes), len(step)
        if positions == 0:
            return cls(nonfinite=tokens)
        typical = float(errors.square().mean().sqrt())
        squares = errors.square()
        others = ((squares.sum(0) - squares) / max(len(errors) - 1, 1)).clamp(min=0).sqrt()
        worst = float((errors / torch.maximum(others.clamp(min=typical), step)).max())
        changed = [sum(counts) / tokens for counts in zip(*(one.changed for one in probes), strict=True)]
        copy, own = (torch.maximum(part, step).square().mean().sqrt() for part in (errors[:1], errors[1:]))
        pair = float(pairs.square().mean().sqrt())
        nonfinite = tokens - positions
        return cls(typical, pair, max(worst, 1.0), max(changed), positions, nonfinite, float(copy / own))

    def explains(self, mismatch: Mismatch) -> bool:
        """Return whether it is a near-tie. Noise that is no finite number explains nothing."""
        return mismatch.gap <= SAFETY * max(mismatch.noise, self.pair) < inf

    def units(self, probe: LogitProbe) -> Tensor:
        """Return the unit of errors of an engine's logits at each position, float64 [n]."""
        local = torch.maximum(probe.errors.square().mean(0).sqrt(), probe.step)
        return local.clamp(min=self.logits)

    @property
    def most(self) -> float:
        """Return how many units an error of an engine's logits may be."""
        return SAFETY * self.worst


@dataclass
class Judge:
    """Probes texts with the model itself, each once."""

    target: TargetModel
    rounding: Rounding = field(default_factory=Rounding)
    _probes: dict[tuple[tuple[int, ...], str, tuple[int, ...]], LogitProbe] = field(default_factory=dict)

    def calibrate(self, requests: Sequence[Request], texts: Sequence[tuple[int, ...]]) -> None:
        """Measure rounding on the texts of the reference, in all shapes."""
        for request, text in zip(requests, texts, strict=True):
            self.probe(request, text, cached=True)
        self.rounding = Rounding.measure(list(self._probes.values()))

    def probe(self, request: Request, new: tuple[int, ...], cached: bool = False) -> LogitProbe:
        """Probe one text; with `cached` also in shapes that use a cache."""
        key = (request.prompt, repr(request.params), new)
        if key not in self._probes:
            self._probes[key] = self._probe(request, new, cached)
        return self._probes[key]

    def _probe(self, request: Request, new: tuple[int, ...], cached: bool) -> LogitProbe:
        text, device = [*request.prompt, *new], self.target.device
        own = reference_logits(self.target, torch.tensor([text], device=device), len(new))[0]
        rules = Rules(request.prompt, torch.tensor(new, device=device), request.params)
        places = torch.arange(len(new), device=device)
        choices, columns = rules.choices(own, places), _columns(own)
        shapes = list(other_shapes(self.target, text, len(new), cached))
        reference = own.gather(1, columns).double()
        moved = torch.stack([logits.gather(1, columns).double() for logits in shapes]) - reference
        exactness = max(torch.finfo(own.dtype).eps, torch.finfo(torch.float32).eps) / 4
        mismatched = torch.nonzero(choices != rules.new).flatten().tolist()
        return LogitProbe(
            mismatches=tuple(_mismatch(rules, own, shapes, at, int(choices[at])) for at in mismatched),
            columns=columns,
            logits=reference,
            errors=moved.square().mean(2).sqrt(),
            pairs=moved[..., 0] - moved[..., 1],
            step=(reference.abs().amax(1) * exactness).clamp(min=_MIN_STEP),
            changed=tuple(int((rules.choices(logits, places) != choices).sum()) for logits in shapes),
            probs=() if request.params.greedy else token_probs(rules, own, places),
        )


def _columns(logits: Tensor) -> Tensor:
    """Return the M tokens whose logits are compared, Long [n, M], the best two first."""
    vocabulary = logits.shape[1]
    best = logits.topk(min(_BEST, vocabulary)).indices
    others = torch.linspace(0, vocabulary - 1, min(_OTHERS, vocabulary), device=logits.device).long()
    return torch.cat((best, others.expand(len(logits), -1)), 1)


def _mismatch(rules: Rules, own: Tensor, shapes: Sequence[Tensor], at: int, expected: int) -> Mismatch:
    token = int(rules.new[at])
    pairs = torch.stack([logits[at].double()[[token, expected]] for logits in (own, *shapes)])
    differences = pairs[:, 0] - pairs[:, 1]
    noise = float((differences[1:] - differences[0]).abs().max())
    return Mismatch(at, token, expected, rules.gap(own[at], at, token), noise)


def token_probs(rules: Rules, logits: Tensor, at: Tensor) -> tuple[tuple[float, float], ...]:
    """Return, per place `at`, the probability of its token with all that are as probable, and of all more probable."""
    probs = rules.probs(logits, at)
    own = probs.gather(1, rules.new[:, None])
    equal, above = (torch.where(some, probs, 0.0).sum(1) for some in (probs == own, probs > own))
    return tuple(zip(equal.tolist(), above.tolist(), strict=True))
