"""The engine emits at every step what the slow reference emits, which is what plain decoding writes."""

import pytest
import torch

from clover.drafts import Clover2Draft, EagleDraft, MedusaDraft
from clover.engine import Engine, Request
from clover.reference import decode
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.families import tiny_model

PROMPT, NEW, DEPTH = (3, 14, 15, 9, 2, 6), 24, 3
PARAMS = [SamplingParams(), SamplingParams(temperature=0.8, seed=3, repetition_penalty=1.2)]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("system", [Clover2Draft, MedusaDraft, EagleDraft])
def test_the_engine_takes_the_same_steps(system: type, params: SamplingParams) -> None:
    target = TargetModel(tiny_model("llama").double())
    draft = system.from_target(target).eval()
    request = Request(PROMPT, NEW, params, eos=())
    expected = list(decode(target, draft, PROMPT, NEW, DEPTH, params))
    steps = [list(event.tokens) for event in Engine(target, draft, f"chain:{DEPTH}").run([request])]
    assert steps == expected
    plain = [token for event in Engine(target).run([request]) for token in event.tokens]
    assert [token for step in expected for token in step] == plain


def test_a_draft_of_a_part_of_the_vocabulary_proposes_the_targets_tokens() -> None:
    target = TargetModel(tiny_model("llama").double())
    draft = Clover2Draft.from_target(target).eval()
    draft.reduce_vocabulary(torch.arange(0, target.vocab_size, 2))
    steps = [
        list(event.tokens)
        for event in Engine(target, draft, f"chain:{DEPTH}").run([Request(PROMPT, NEW, eos=())])
    ]
    assert list(decode(target, draft, PROMPT, NEW, DEPTH)) == steps
