"""The audit once more in float32, from where texts differed: a near-tie stays one or is gone, a defect comes again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from clover.audit.findings import ENDED, Difference, Findings
from clover.audit.local import PLAIN, LocalAudit, Mode, Told
from clover.audit.noise import MARGIN, reference_logits
from clover.audit.rules import Rules
from clover.engine import Engine
from clover.target import TargetModel

_TEXTS = 5  # that are decoded again, so many as there are mixed parameters
_TOKENS = 16  # new ones of each


def repeat(audit: LocalAudit, found: Findings, make: Callable[[], dict[str, Engine]], told: Told) -> Findings:
    """Decode again, and note in `found` how near the ties are in float32.

    Args:
        audit: that found `found`.
        make: makes the engines in float32.
    """
    told(0, "loading in float32")
    engines = make()
    target = engines[PLAIN].target
    gap = cache(lambda one: _gap(target, one))
    for way in found.ways:
        way.differences = [
            replace(one, exact_gap=gap(replace(one, way="", gap=0.0, noise=0.0))) for one in way.differences
        ]
    exact_audit = LocalAudit(engines, _modes(audit, found.differences), audit.batch_sizes)
    return exact_audit.run(lambda count, doing: told(count, f"float32: {doing}"))


def _modes(audit: LocalAudit, differences: list[Difference]) -> list[Mode]:
    """Texts from where they differed, then those of the audit while there are few; enough for the largest batch."""
    modes, count = [], max(_TEXTS, *audit.batch_sizes)
    room = audit.judge.target.longest_run - MARGIN
    for mode in audit.modes:
        own = set(mode.requests)
        again = [
            replace(one.request, prompt=(*one.request.prompt, *one.before))
            for one in differences
            if one.request in own
        ]
        chosen = [*list(dict.fromkeys(again))[:_TEXTS], *mode.requests][:count]
        lengths = [min(_TOKENS, room - len(one.prompt)) for one in chosen]
        requests = (replace(one, max_new_tokens=new) for one, new in zip(chosen, lengths, strict=True))
        modes.append(Mode(mode.name, tuple(requests)))
    return modes


def _gap(target: TargetModel, one: Difference) -> float | None:
    """The gap of a difference, as this target sees it; None where one of the texts has ended."""
    pair = [token for token in (one.expected, one.token) if isinstance(token, int) and token != ENDED]
    if one.request is None or len(pair) < 2:
        return None
    new = torch.tensor([*one.before, pair[0]], device=target.device)
    text = torch.tensor([[*one.request.prompt, *new.tolist()]], device=target.device)
    rules = Rules(one.request.prompt, new, one.request.params)
    logits = reference_logits(target, text, 1)[0, 0]
    return max(rules.gap(logits, len(one.before), token) for token in pair)
