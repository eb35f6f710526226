"""A draft whose scores are no numbers at run time proposes nothing of worth, and breaks nothing."""

import pytest
import torch

from clover.drafting import make_drafter
from clover.engine import Engine, Request
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import parse_tree
from tests.drafting.scripted import ScriptedDraft, Text
from tests.engine.test_lossless import run, tokens_of
from tests.families import VOCAB, tiny_model

TREES = ("chain:4", "chain:4:0.1", "clover2", "budget:4", "eagle2:8:3", "drawn:chain:3")
SCORES = {"nan": [torch.nan], "infinite": [torch.inf, -torch.inf], "some": [0.0, torch.nan, torch.inf, 1.0]}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(tree: str, kind: str, temperature: float) -> None:
    target = TargetModel(tiny_model("llama"))

    def opinion(text: Text) -> torch.Tensor:
        scores = torch.tensor(SCORES[kind], dtype=torch.float64)
        return scores.repeat(VOCAB // len(scores) + 1)[:VOCAB].roll(len(text))

    draft = ScriptedDraft(target, opinion)
    params = SamplingParams(temperature=temperature, seed=1)
    requests = [Request((3, 4, 5), 8, params, eos=()), Request((6, 7), 8, params, eos=())]
    assert make_drafter(draft, tree).max_nodes > 1  # type: ignore[arg-type]
    found = run(Engine(target, draft, parse_tree(tree)), requests)  # type: ignore[arg-type]
    if temperature and tree.startswith("drawn:"):
        return  # recursive rejection sampling: the same distribution, other tokens
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))
