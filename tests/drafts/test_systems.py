"""What every draft system with a slow reference has to satisfy, in its default and in each of its options."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafts.loading import SYSTEMS
from clover.errors import UserError
from clover.target import TargetModel
from tests.drafts import test_clover1, test_clover2, test_hydra, test_medusa, test_recall
from tests.drafts.checks import (
    check_drop,
    check_gradients,
    check_round_trip,
    check_session,
    check_training,
    make,
    texts,
)
from tests.drafts.tree_walk import walk_everywhere
from tests.families import by_turns, tiny_model

REFERENCES: dict[str, Any] = {
    "clover1": test_clover1,
    "clover2": test_clover2,
    "hydra": test_hydra,
    "medusa": test_medusa,
    "recall": test_recall,
}
CASES = [(name, options) for name, module in REFERENCES.items() for options in module.OPTIONS]


def families_of(module: Any) -> list[tuple[dict[str, object], str]]:
    """Options and families: what is made of a family's own layers meets each, other options one, in turn."""
    pairs = []
    for number, options in enumerate(module.OPTIONS):
        one = module.FAMILIES[-number % len(module.FAMILIES)]
        chosen = module.FAMILIES if options in module.WITH_EVERY_FAMILY else (one,)
        pairs += [(options, family) for family in chosen]
    return pairs


def case(value: object) -> str | None:
    return "-".join(map(str, value.values())) or "default" if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("name", "options", "family"),
    by_turns([(name, *pair) for name, module in REFERENCES.items() for pair in families_of(module)]),
    ids=case,
)
def test_training_and_session_agree_with_the_reference(name: str, options: Any, family: str) -> None:
    reference = REFERENCES[name].reference
    target, draft = make(SYSTEMS[name], family, **options)
    check_training(target, draft, reference)
    both = (draft, draft.for_inference())  # by the equations, and by tables of what tokens give
    check_session(target, both, reference)
    if draft.repeats_step:
        tokens, hidden = texts(target, draft, rows=3, length=16)
        expected = partial(reference, target, draft)
        walk_everywhere([each.new_session for each in both], hidden, expected, tokens)


@pytest.mark.parametrize(("name", "options"), CASES, ids=case)
def test_rows_saving_and_learning(name: str, options: Any, tmp_path: Path) -> None:
    target, draft = make(SYSTEMS[name], "qwen3", **{"num_heads": 3, **options})
    check_drop(target, draft)
    check_round_trip(target, draft, tmp_path)
    check_gradients(target, draft)


@torch.no_grad()
@pytest.mark.parametrize("name", REFERENCES)
def test_every_option_makes_another_draft(name: str) -> None:
    seen: list[Tensor] = []
    tokens = torch.arange(9)[None]
    for options in REFERENCES[name].OPTIONS:
        disturb = 0.0 if "start" in options else 0.2
        target, draft = make(SYSTEMS[name], disturb=disturb, **options)
        hidden = target.train_forward(tokens, draft.config.hidden_state).draft_hidden_states
        logits = draft.train_logits(draft(hidden, tokens).movedim(0, -2))
        assert all((logits - other).abs().max() > 1e-3 for other in seen), options
        seen.append(logits)


@pytest.mark.parametrize(
    ("name", "option", "value", "problem"),
    [
        ("clover1", "augmenting", "whole", "is 'whole'; it must be 'block'"),
        ("clover1", "connection", "linear", "is 'linear'"),
        ("clover1", "start", "copy", "is 'copy'"),
        ("clover1", "hidden_state", "low_middle_high", "is 'low_middle_high'"),
        ("clover2", "embedding", "other", "is 'other'"),
        ("clover2", "hidden_state", "other", "is 'other'"),
        ("clover2", "start", "other", "is 'other'"),
        ("clover2", "embedding_scale", -1.0, "is -1.0"),
        ("clover2", "embedding_scale", "abc", "is 'abc'"),
        ("clover2", "num_augmenting_layers", 0, "is 0"),
        ("eagle", "hidden_state", "pre_norm", "is 'pre_norm'; it must be 'post_norm'"),
        ("eagle3", "hidden_state", "post_norm", "is 'post_norm'; it must be 'low_middle_high'"),
        ("hydra", "hidden_state", "pre_norm", "is 'pre_norm'"),
        ("medusa", "hidden_state", "pre_norm", "is 'pre_norm'; it must be 'post_norm'"),
        *(("recall", "mlp_ratio", value, "is ") for value in (0.0, 17.0, "1", True)),
        *((name, "num_heads", 0, "is 0") for name in SYSTEMS),
    ],
)
def test_what_an_option_cannot_be_is_said_by_name(name: str, option: str, value: Any, problem: str) -> None:
    with pytest.raises(UserError, match=f"{name}: {option} {problem}"):
        SYSTEMS[name].from_target(TargetModel(tiny_model("llama")), **{option: value})


@pytest.mark.parametrize(
    ("name", "option"), [("clover2", "first_decoder"), ("recall", "num_augmenting_layers")]
)
def test_what_is_no_option_is_refused_by_name(name: str, option: str) -> None:
    with pytest.raises(UserError, match=f"{name} has no option '{option}'; it has .*num_heads"):
        SYSTEMS[name].from_target(TargetModel(tiny_model("llama")), **{option: 1})
