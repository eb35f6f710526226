"""A draft whose scores are no numbers at run time proposes nothing of worth, and breaks nothing."""

from pathlib import Path

import pytest
import torch

from clover.api import make_engine
from clover.drafting import parse_tree
from clover.drafts import Clover2Draft
from clover.engine import Engine, Request
from clover.sampling import SamplingParams
from clover.target import TargetModel
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
    assert parse_tree(tree).drafter(draft).max_nodes > 1  # type: ignore[arg-type]
    found = run(Engine(target, draft, parse_tree(tree)), requests)  # type: ignore[arg-type]
    if temperature and not parse_tree(tree).exact:
        return  # recursive rejection sampling: the same distribution, other tokens
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def drafts(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved drafts of random weights, and of weights of which one is no number."""
    places = {kind: tmp_path_factory.mktemp(kind) for kind in ("random", "nan")}
    for kind, place in places.items():
        torch.manual_seed(0)
        draft = Clover2Draft.from_target(target, num_heads=4)
        with torch.no_grad():
            for weight in draft.parameters():
                weight.normal_()
            next(draft.parameters()).view(-1)[0] = 1.0 if kind == "random" else torch.nan
        draft.save_pretrained(place)
    return places


@pytest.mark.parametrize("tree", [*TREES, "auto", "plain", "lookup", "own"])
@pytest.mark.parametrize("kind", ["random", "nan"])
def test_a_draft_of_any_weights_decodes_losslessly(
    target: TargetModel,
    drafts: dict[str, Path],
    tree: str,
    kind: str,
    recwarn: pytest.WarningsRecorder,
) -> None:
    engine = make_engine(target, drafts[kind], tree)
    asked = tree not in ("plain", "lookup")
    assert any("not finite" in str(one.message) for one in recwarn) == (asked and kind == "nan")
    assert (engine.draft is None) == (not asked or kind == "nan")
    sampled = [] if not parse_tree(tree).exact else [SamplingParams(temperature=0.8, seed=1)]
    params = [SamplingParams(), *sampled]
    requests = [Request((3, 4, 5 + i), 16, params[i % len(params)], eos=()) for i in range(4)]
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
