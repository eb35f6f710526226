from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clover.drafts import RecallDraft
from clover.errors import UserError
from clover.measure.bench.methods import (
    AUTO,
    LOOKUP,
    OWN_TREE,
    PLAIN,
    TRANSFORMERS,
    make_method,
    method_names,
)
from clover.measure.bench.run import load_assistant
from clover.measure.interleaved import make_batches
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module")
def draft(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("draft")
    RecallDraft.from_target(target, num_heads=3).save_pretrained(folder)
    return str(folder)


def test_all_methods_write_the_same(target: TargetModel, draft: str) -> None:
    (batch,) = make_batches([(5, 6, 7)], 1, 0.0, 10, 100)
    names = method_names(["chain:3", "drawn:chain:2"], reference=True, assisted=True)
    methods = [make_method(name, target, draft, tiny_model("llama")) for name in names]
    texts = {one.name: one.decode(batch).texts for one in methods}
    assert len(texts) == 8 and set(texts.values()) == {texts[PLAIN]}
    assert [one.drafts for one in methods] == [False, True, True, True, True, False, False, False]
    assert [one.nodes for one in methods][3:] == [4, 3, None, None, None]
    assert methods[0].nodes == 1 and methods[1].nodes is None
    assert make_method("lookup", target, draft, None).nodes is None  # the root alone where nothing repeats
    assert len({one.label for one in methods}) == 8


def test_what_is_comparable_and_who_takes_batches(target: TargetModel, draft: str) -> None:
    own, drawn, theirs = (make_method(n, target, draft) for n in (OWN_TREE, "drawn:chain:2", TRANSFORMERS))
    assert own.comparable(0.0) and own.comparable(1.0)
    assert drawn.comparable(0.0) and not drawn.comparable(1.0)
    assert theirs.comparable(0.0) and not theirs.comparable(0.5)
    assert theirs.refusal(4) is own.refusal(4) is None
    lookup = make_method(LOOKUP, target, draft)
    assert lookup.refusal(1) is None and "not able" in str(lookup.refusal(2))


def test_steps_are_compiled_on_demand(target: TargetModel, draft: str) -> None:
    for name in (PLAIN, OWN_TREE, AUTO, "chain:2"):
        compiled = make_method(name, target, draft, compile="eager").engine
        assert compiled is not None and compiled.captured is not None
        ordinary = make_method(name, target, draft).engine
        assert ordinary is not None and ordinary.captured is None


def test_trees_are_checked(target: TargetModel, draft: str) -> None:
    with pytest.raises(UserError, match="17 deep"):
        make_method("chain:17", target, draft)


def test_an_assistant_needs_the_same_vocabulary(target: TargetModel, tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size = 51
    tiny_model("llama", config=config).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="vocabulary of 51, the target one of 50"):
        load_assistant(str(tmp_path / "other"), target, False)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_assistant(str(tmp_path / "none"), target, False)
