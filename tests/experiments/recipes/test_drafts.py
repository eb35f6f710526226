"""The best tree of n nodes is found by counting accepted nodes."""

from __future__ import annotations

from clover.engine import Engine, Request
from clover.target import TargetModel
from clover.tree import TreeShape
from experiments.recipes.drafts import likely_paths
from tests.families import tiny_model
from tests.oracle import OracleDraft


def test_the_most_accepted_nodes_come_first_and_form_trees() -> None:
    target = TargetModel(tiny_model("llama"))
    requests = [Request((3, 4 + i), 30, eos=()) for i in range(4)]
    texts = [
        [*r.prompt, *next(e.generation for e in Engine(target).run([r]) if e.generation).tokens]
        for r in requests
    ]
    for spread, first in ((0, [(0,), (0, 0), (0, 0, 0)]), (1, None)):
        draft = OracleDraft(target, texts, spread=spread)
        draft.max_depth = 3
        found = likely_paths(Engine(target, draft, "chain:1"), requests)  # type: ignore[arg-type]
        assert first is None or found[:3] == first
        for size in range(1, len(found) + 1):
            assert TreeShape.from_paths(found[:size]).budget == size
