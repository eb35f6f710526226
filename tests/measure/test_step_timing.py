"""Steps that are timed in turn: who runs, what is counted, and that the text does not change."""

import pytest

from clover.drafting import PLAIN_DRAFTER, StaticDrafter
from clover.drafts.medusa import MedusaDraft
from clover.engine import Request
from clover.measure.step_timing import Step, time_in_turn
from clover.target import TargetModel
from clover.tree import TreeShape
from tests.families import tiny_model


@pytest.fixture(scope="module")
def steps() -> dict[str, list[Step]]:
    target = TargetModel(tiny_model("llama"))
    draft = MedusaDraft.from_target(target, num_heads=2).eval()
    batch = [Request((3, 4, 5), 10), Request((6, 7), 10)]
    drafters = {"plain": PLAIN_DRAFTER, "chain:2": StaticDrafter(draft, TreeShape.chain(2))}
    return time_in_turn(target, draft, drafters, [batch], lambda fewest: fewest >= 9)


def test_everyone_gets_enough_turns(steps: dict[str, list[Step]]) -> None:
    counts = [len(some) for some in steps.values()]
    assert min(counts) >= 9 and max(counts) - min(counts) <= 4


def test_steps_say_what_was_emitted_and_what_it_took(steps: dict[str, list[Step]]) -> None:
    for name, some in steps.items():
        for step in some:
            assert len(step.emitted) == 2 and step.verify_seconds is not None
            assert 0 < step.verify_seconds < step.seconds
            assert step.emitted == (1, 1) or name == "chain:2"
