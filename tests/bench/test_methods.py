from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clover.bench.methods import (
    AUTO,
    LOOKUP,
    OWN_TREE,
    PLAIN,
    TRANSFORMERS,
    load_assistant,
    make_contender,
    method_names,
)
from clover.drafts import RecallDraft
from clover.errors import UserError
from clover.interleaved import make_batches
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel) -> RecallDraft:
    torch.manual_seed(0)
    return RecallDraft.from_target(target, num_heads=3).eval()


def test_all_methods_write_the_same(target: TargetModel, draft: RecallDraft) -> None:
    (batch,) = make_batches([(5, 6, 7)], 1, 0.0, 10, 100)
    names = method_names(["chain:3", "drawn:chain:2"], reference=True, assisted=True)
    contenders = [make_contender(name, target, draft, tiny_model("llama")) for name in names]
    texts = {one.name: one.decode(batch).texts for one in contenders}
    assert len(texts) == 8 and set(texts.values()) == {texts[PLAIN]}
    assert [one.drafts for one in contenders] == [False, True, True, True, True, False, False, False]


def test_what_is_comparable_and_who_takes_batches(target: TargetModel, draft: RecallDraft) -> None:
    own, drawn, theirs = (make_contender(n, target, draft) for n in (OWN_TREE, "drawn:chain:2", TRANSFORMERS))
    assert own.comparable(0.0) and own.comparable(1.0)
    assert drawn.comparable(0.0) and not drawn.comparable(1.0)
    assert theirs.comparable(0.0) and not theirs.comparable(0.5)
    assert theirs.refusal(4) is own.refusal(4) is None
    lookup = make_contender(LOOKUP, target)
    assert lookup.refusal(1) is None and "not able" in str(lookup.refusal(2))


def test_steps_are_compiled_on_demand(target: TargetModel, draft: RecallDraft) -> None:
    for name in (PLAIN, OWN_TREE, AUTO, "chain:2"):
        compiled = make_contender(name, target, draft, compile="eager").engine
        assert compiled is not None and compiled.captured is not None
        ordinary = make_contender(name, target, draft).engine
        assert ordinary is not None and ordinary.captured is None


def test_trees_are_checked(target: TargetModel, draft: RecallDraft) -> None:
    with pytest.raises(UserError, match="17 deep"):
        make_contender("chain:17", target, draft)


def test_an_assistant_needs_the_same_vocabulary(target: TargetModel, tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size = 51
    tiny_model("llama", config=config).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="vocabulary of 51, the target one of 50"):
        load_assistant(str(tmp_path / "other"), target, False)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_assistant(str(tmp_path / "none"), target, False)
