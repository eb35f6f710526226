from __future__ import annotations

from pathlib import Path

import pytest

from clover.engine import Engine, Request
from clover.engine.compiled import CompiledRunner
from clover.errors import UserError
from clover.measure.methods import (
    TRANSFORMERS,
    TRANSFORMERS_LOOKUP,
    TransformersGenerate,
    load_assistant,
    make_method,
    method_names,
)
from clover.measure.session import AUTO, PLAIN, Session
from clover.measure.timing import make_batches, time_decoding
from clover.target import TargetModel
from tests.families import tiny_config, tiny_model

PROMPTS = [(5, 6, 7, 5, 6, 7, 5), (8, 9), (10, 11, 12, 13)]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def expected(target: TargetModel, batch: list) -> tuple[tuple[int, ...], ...]:
    return time_decoding(Engine(target), batch).texts


def test_greedy_texts_are_those_of_plain_decoding(target: TargetModel) -> None:
    (batch,) = make_batches(PROMPTS, 3, 0.0, 12, 100)
    run = TransformersGenerate(target)(batch)
    assert run.texts == expected(target, batch)  # rows of different length, and rows that end early
    assert run.acceptance.tau == 1.0 and run.acceptance.emitted == run.tokens
    assert run.seconds > 0


def test_a_request_says_which_tokens_end_it(target: TargetModel) -> None:
    texts = expected(target, [Request(prompt, 12, eos=()) for prompt in PROMPTS])
    assert [len(text) for text in texts] == [12, 12, 12]
    for eos in ((), (texts[1][4],)):
        batch = [Request(prompt, 12, eos=eos) for prompt in PROMPTS]
        for end in (None, texts[0][2]):  # what the model's own configuration says is not asked
            target.model.generation_config.eos_token_id = end
            assert TransformersGenerate(target)(batch).texts == expected(target, batch)
    target.model.generation_config.eos_token_id = None


@pytest.mark.parametrize("how", ["lookup", "assistant"])
def test_drafts_of_transformers_write_the_same_and_steps_are_counted(target: TargetModel, how: str) -> None:
    other = {"lookup_tokens": 4} if how == "lookup" else {"assistant": tiny_model("llama")}
    theirs = TransformersGenerate(target, **other)
    assert theirs.one_row_only
    for batch in make_batches(PROMPTS, 1, 0.0, 12, 100):
        run = theirs(batch)
        assert run.texts == expected(target, batch)
        assert run.acceptance.emitted == run.tokens
        if how == "assistant":  # the target itself: it is always right
            assert run.acceptance.tau > 1.5


def test_sampled_texts_depend_on_the_seed_alone(target: TargetModel) -> None:
    first, second, *_ = make_batches(PROMPTS[:1] * 2, 1, 1.0, 20, 100)
    assert TransformersGenerate(target)(first).texts == TransformersGenerate(target)(first).texts
    assert TransformersGenerate(target)(first).texts != TransformersGenerate(target)(second).texts


def test_all_methods_write_the_same(session: Session) -> None:
    (batch, *_) = session.batches(1)
    names = method_names(["chain:3", "drawn:chain:2"], reference=True, assisted=True)
    methods = [make_method(name, session, session.target.model) for name in names]
    texts = {one.name: one.decode(batch).texts for one in methods}
    assert len(texts) == 9 and set(texts.values()) == {texts[PLAIN]}
    assert [one.drafts for one in methods] == [False, True, True, False, True, True, False, False, False]
    assert [one.nodes for one in methods][3:] == [None, 4, 3, None, None, None]
    assert methods[0].nodes == 1 and methods[1].nodes is None
    assert len({one.label for one in methods}) == 9


def test_what_is_comparable_and_what_decodes_batches(session: Session) -> None:
    own, drawn, theirs = (make_method(name, session) for name in ("own", "drawn:chain:2", TRANSFORMERS))
    assert own.comparable(0.0) and own.comparable(1.0)
    assert drawn.comparable(0.0) and not drawn.comparable(1.0)
    assert theirs.comparable(0.0) and not theirs.comparable(0.5)
    assert not theirs.one_text_only and not own.one_text_only
    assert make_method(TRANSFORMERS_LOOKUP, session).one_text_only


def test_steps_are_compiled_on_demand(session: Session) -> None:
    for name in (PLAIN, "own", AUTO, "chain:2"):
        compiled = make_method(name, session, compile="eager").engine
        assert compiled is not None and isinstance(compiled.runner, CompiledRunner)
        ordinary = make_method(name, session).engine
        assert ordinary is not None and not isinstance(ordinary.runner, CompiledRunner)


def test_an_assistant_needs_the_same_vocabulary_and_sound_weights(session: Session, tmp_path: Path) -> None:
    config = tiny_config("llama")
    tiny_model("llama", config=config).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match=f"vocabulary of 50, the target one of {session.target.vocab_size}"):
        load_assistant(str(tmp_path / "other"), session.target, False)
    (tmp_path / "other" / "model.safetensors").write_bytes(b"broken")
    for name in ("none", "other"):
        with pytest.raises(UserError, match=f"the assistant .*{name} cannot be loaded"):
            load_assistant(str(tmp_path / name), session.target, False)
