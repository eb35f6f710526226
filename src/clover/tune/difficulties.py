"""How hard texts of other temperatures are than those that the draft is tuned on.

The warmer a text, the more often its next token is not the one that the draft has in mind. A batch that starts with
such rows is to know that before it has drafted anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from clover.drafting import make_fixed_policy
from clover.drafting.hazards import fit
from clover.drafting.tuning import TextDifficulty
from clover.drafts import DraftModel
from clover.engine import Engine, Request
from clover.interleaved import decode
from clover.metrics import Acceptance
from clover.target import TargetModel
from clover.tree import TreeShape

_TEMPERATURES = (0.0, 0.5, 1.0)
_PROMPTS, _TOGETHER, _TOKENS = 16, 8, 64  # as many texts, so many at once, of at most so many new tokens
_DEEPEST = 8  # tokens of the chains that they are judged by


def measure_difficulties(
    target: TargetModel,
    draft: DraftModel,
    requests: Sequence[Request],
    temperature: float,
    depth: int,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[TextDifficulty, ...]:
    """Decode the same prompts greedily, at temperatures 0.5 and 1, and at the one that is tuned for.

    Args:
        requests: what the draft is tuned on.
        temperature: theirs; text of it has difficulty 1.
        depth: of the draft's deepest chains.
        progress: called with the share that is done, 0 … 1.

    Returns:
        one for each temperature, rising.
    """
    chain = TreeShape.chain(min(depth, _DEEPEST))
    engine = Engine(target, draft, policy=make_fixed_policy(draft, chain))
    temperatures = sorted({*_TEMPERATURES, temperature})
    found: dict[float, tuple[float, float]] = {}  # hazard and spread
    for done, value in enumerate(temperatures):
        acceptance = _acceptance(engine, [_at(one, value) for one in requests[:_PROMPTS]])
        found[value] = fit(acceptance.histogram, chain.max_depth)
        progress((done + 1) / len(temperatures))
    usual, _ = found[temperature]
    return tuple(TextDifficulty(value, hazard / usual, spread) for value, (hazard, spread) in found.items())


def _at(request: Request, temperature: float) -> Request:
    params = replace(request.params, temperature=temperature)
    return replace(request, max_new_tokens=min(request.max_new_tokens, _TOKENS), params=params)


def _acceptance(engine: Engine, requests: Sequence[Request]) -> Acceptance:
    starts = range(0, len(requests), _TOGETHER)
    runs = [decode(engine, requests[start : start + _TOGETHER]) for start in starts]
    return reduce(add, (run.acceptance for run in runs), Acceptance())
