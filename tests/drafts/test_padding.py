"""Positions of padding past the end of the context, where one row has little room left and another accepts many."""

from __future__ import annotations

import pytest
import torch

from clover.drafts.loading import SYSTEMS
from clover.target import TargetModel
from tests.families import VOCAB, tiny_config, tiny_model

CONTEXT, MANY = 32, 13
OPTIONS: dict[str, dict[str, object]] = {"hydra": {"prefix_attention": True}}


@torch.inference_mode()
@pytest.mark.parametrize("family", ["gpt2", "opt", "phi3", "llama"])
@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_padding_past_the_context_changes_nothing(family: str, system: str) -> None:
    config = tiny_config(family)
    config.max_position_embeddings = CONTEXT
    target = TargetModel(tiny_model(family, config=config))
    draft = SYSTEMS[system].from_target(target, **OPTIONS.get(system, {})).to(target.dtype).eval()
    tokens = torch.randint(VOCAB, (2, CONTEXT))
    hidden = target.train_forward(tokens, draft.config.hidden_state).draft_hidden_states
    lengths, counts = [CONTEXT - 2, 5], [1, MANY]
    together = draft.new_session(2, CONTEXT)
    together.commit(hidden, tokens, lengths)
    rows = [(row, slice(at, at + count)) for row, (at, count) in enumerate(zip(lengths, counts, strict=True))]
    found = together.commit(
        torch.nn.utils.rnn.pad_sequence([hidden[row, new] for row, new in rows], batch_first=True),
        torch.nn.utils.rnn.pad_sequence([tokens[row, new] for row, new in rows], batch_first=True),
        counts,
    )
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        alone = draft.new_session(1, CONTEXT)
        end = length + count
        expected = alone.commit(hidden[row : row + 1, :end], tokens[row : row + 1, :end], [end])
        torch.testing.assert_close(found[row], expected[0])
