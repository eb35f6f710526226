"""How hard texts are: what each of them says when it is decoded alone."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import pytest

from clover.drafting.hazards import fit
from clover.drafts import Clover2Draft, DraftModel
from clover.drafts.lookup import LookupDraft
from clover.engine import Engine, Request
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import TreeShape
from clover.tune.difficulties import measure_difficulties
from tests.engine.test_lossless import run
from tests.families import tiny_model

REQUESTS = [
    Request((3, 4, 5, row), 12 + 9 * row, SamplingParams(temperature=0.6, seed=row), eos=())
    for row in range(3, 20)
]
COUNTED, LONGEST = 16, 64  # prompts, and tokens of each


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("system", ["lookup", "clover2"])
def test_hazards_are_those_of_the_prompts_one_by_one(system: str, temperature: float) -> None:
    target = TargetModel(tiny_model("llama"))
    kind = LookupDraft if system == "lookup" else Clover2Draft
    draft = kind.from_target(target).to(target.dtype).eval()
    shares: list[float] = []
    found = measure_difficulties(target, draft, REQUESTS, temperature, 4, shares.append)
    alone = [fitted_alone(target, draft, one.temperature) for one in found]
    hazards = [hazard for hazard, _ in alone]
    assert [one.temperature for one in found] == sorted({0.0, 0.5, 1.0, temperature})
    assert [one.spread for one in found] == [spread for _, spread in alone]
    own = hazards[[one.temperature for one in found].index(temperature)]
    assert [one.ratio for one in found] == pytest.approx([hazard / own for hazard in hazards])
    assert shares == sorted(shares) and shares[-1] == 1.0
    if system == "lookup":
        assert len({one.ratio for one in found}) == len(found), "repetitions are what it drafts"


def fitted_alone(target: TargetModel, draft: DraftModel, temperature: float) -> tuple[float, float]:
    """By chains of 4."""
    engine, found = Engine(target, draft, TreeShape.chain(4)), list[Acceptance]()
    for request in REQUESTS[:COUNTED]:
        params = replace(request.params, temperature=temperature)
        new = min(request.max_new_tokens, LONGEST)
        found.append(run(engine, [replace(request, max_new_tokens=new, params=params)])[0].acceptance)
    return fit(reduce(add, found, Acceptance()).histogram, 4)
