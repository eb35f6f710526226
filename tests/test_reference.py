"""The engine emits at every step what the slow reference emits, which is what plain decoding writes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clover import reference
from clover.drafts import Clover2Draft, DraftModel, EagleDraft, MedusaDraft
from clover.drafts.vocabulary import target_tokens
from clover.engine import Engine, Request
from clover.sampling import Sampler, SamplingParams
from clover.target import TargetModel
from tests.families import tiny_model

PROMPT, NEW, DEPTH = (3, 14, 15, 9, 2, 6), 24, 3
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, seed=3)


def target_function(target: TargetModel) -> reference.Target:
    """Return the target as a function of a whole text, which no cache shortens."""

    def logits(tokens: list[int]) -> Tensor:
        with torch.no_grad():
            return target.logits(target.train_forward(torch.tensor([tokens])).hidden)[0]

    return logits


def draft_function(draft: DraftModel, params: SamplingParams) -> reference.Draft:
    """Return the draft as a function of a whole text: the likeliest chain of DEPTH tokens."""
    target = draft.target

    @torch.no_grad()
    def guesses(text: list[int]) -> list[int]:
        sampler = Sampler([params], [PROMPT], target.vocab_size, target.device)
        new = text[len(PROMPT) :]
        sampler.commit(torch.tensor([new], dtype=torch.long), torch.tensor([len(new)]))
        hidden = target.train_forward(
            torch.tensor([text[:-1]]), draft.config.hidden_state
        ).draft_hidden_states
        session = draft.new_session(1, len(text) + DEPTH)
        logits = session.commit(hidden, torch.tensor([text[1:]]), [len(text) - 1])[:, None]
        chain: list[int] = []
        for depth in range(DEPTH):
            scores = sampler.gumbel_scores(logits, depth, draft.session_tokens)
            token = target_tokens(draft.session_tokens, scores.argmax(-1))
            chain.append(int(token))
            if depth + 1 < DEPTH:
                logits = session.advance(torch.zeros_like(token), token)
        return chain

    return guesses


def steps_of(engine: Engine, params: SamplingParams) -> list[list[int]]:
    return [list(event.tokens) for event in engine.run([Request(PROMPT, NEW, params, eos=())])]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("system", [Clover2Draft, MedusaDraft, EagleDraft])
def test_the_engine_takes_the_same_steps(system: Callable[..., DraftModel], params: SamplingParams) -> None:
    target = TargetModel(tiny_model("llama").double())
    draft = system.from_target(target).eval()  # type: ignore[attr-defined]
    models = target_function(target), draft_function(draft, params)
    if params.greedy:
        expected = list(reference.decode(*models, PROMPT, NEW))
    else:
        expected = list(reference.sample(*models, PROMPT, NEW, params.temperature, params.seed))
    assert steps_of(Engine(target, draft, f"chain:{DEPTH}"), params) == expected
    plain = [token for step in steps_of(Engine(target), params) for token in step]
    assert [token for step in expected for token in step] == plain


def test_a_draft_of_a_part_of_the_vocabulary_proposes_the_targets_tokens() -> None:
    target = TargetModel(tiny_model("llama").double())
    draft = Clover2Draft.from_target(target).eval()
    draft.reduce_vocabulary(torch.arange(0, target.vocab_size, 2))
    steps = steps_of(Engine(target, draft, f"chain:{DEPTH}"), GREEDY)
    models = target_function(target), draft_function(draft, GREEDY)
    assert list(reference.decode(*models, PROMPT, NEW)) == steps
