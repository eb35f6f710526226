"""The Python front door."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import clover
from clover import assets
from clover.api import Clover, find_tuning
from clover.drafting import AutoPolicy, UpcomingStep
from clover.drafting.tuning import Choice, Tuning, architecture_name, write_entry
from clover.engine import Engine
from clover.engine.compiled import CompiledRunner
from clover.errors import GenerationError, UserError
from clover.target import TargetModel
from tests.engine.test_unusable import BreakingRunner
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def model(pair: tuple[Path, Path]) -> Clover:
    return clover.load(*pair)


def test_one_prompt_gives_one_result_and_many_a_list(model: Clover) -> None:
    alone = model.generate("the cat", max_new_tokens=12)
    several = model.generate(["the cat", model.encode("the cat"), "hello"], max_new_tokens=12, batch_size=2)
    assert [r.tokens for r in several[:2]] == [alone.tokens] * 2
    assert alone.text == model.target.tokenizer.decode(alone.tokens, skip_special_tokens=True)  # type: ignore[union-attr]


def test_an_error_of_one_prompt_loses_no_other_text(model: Clover) -> None:
    prompts = ["the cat", "the mat is", "hello"]
    good = model.generate(prompts, max_new_tokens=20)
    breaking = copy.copy(model)
    breaking.engine = copy.copy(model.engine)
    breaking.engine.runner = BreakingRunner(model.target, model.engine.hidden_state)
    breaking.engine.runner.broken = len(model.encode(prompts[1]))
    for batch_size in (1, 3):
        with pytest.raises(GenerationError, match=r"^prompt 2: the target's logits are NaN") as caught:
            breaking.generate(prompts, max_new_tokens=20, batch_size=batch_size)
        first, second, third = caught.value.results
        assert [first.tokens, third.tokens] == [good[0].tokens, good[2].tokens]
        assert second.finish_reason == "error" and second.error in str(caught.value)
        assert second.tokens == good[1].tokens[:11]
    with pytest.raises(GenerationError, match="^the target's logits") as caught:
        breaking.generate(prompts[1], max_new_tokens=20)
    assert [one.tokens for one in caught.value.results] == [second.tokens]


@pytest.mark.long
def test_compiled_steps_write_the_same(pair: tuple[Path, Path], model: Clover) -> None:
    for options in ({"tree": "plain"}, {"tree": "chain:2"}):
        compiled = clover.load(*pair, compile="eager", **options)  # type: ignore[arg-type]
        assert isinstance(compiled.engine.runner, CompiledRunner)
        assert (
            compiled.generate("the cat", max_new_tokens=12).tokens
            == model.generate("the cat", max_new_tokens=12).tokens
        )


def test_bare_tokens_and_a_bare_conversation_are_one_prompt(model: Clover) -> None:
    conversation = [{"role": "user", "content": "the cat"}]
    for prompt in ([3, 4, 5], conversation):
        alone = model.generate(prompt, max_new_tokens=8)
        (listed,) = model.generate([prompt], max_new_tokens=8)
        assert (alone.tokens, alone.prompt_tokens) == (listed.tokens, listed.prompt_tokens)
    assert model.generate([]) == []


@pytest.mark.parametrize("prompts", [[3, "the cat"], [[3, "the"]], [["the", "cat"]], [{"role": "user"}, 3]])
def test_mixed_prompts_are_refused(model: Clover, prompts: Any) -> None:
    with pytest.raises(UserError, match="list of token ids"):
        model.generate(prompts)


def test_what_is_no_tree_is_named(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="a tree is 5"):
        clover.load(*pair, tree=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompts",
    [5, None, b"abc", bytearray(b"abc"), [b"abc"], torch.tensor([3, 4]), {"role": "user"}, ["the cat", 5]],
)
def test_what_is_no_prompt_is_refused(model: Clover, prompts: Any) -> None:
    with pytest.raises(UserError, match="list of token ids"):
        model.generate(prompts)


@pytest.mark.parametrize("name", ["stop", "batch_size"])
@pytest.mark.parametrize("value", [None, 1.5, [5]])
def test_an_option_of_another_type_is_named(model: Clover, name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{name}.* is "):
        model.generate("the cat", **{name: value})


def test_streamed_text_is_the_generated_text(model: Clover) -> None:
    pieces = list(model.stream("the cat", max_new_tokens=20, temperature=0.8, seed=3))
    assert "".join(pieces) == model.generate("the cat", max_new_tokens=20, temperature=0.8, seed=3).text


def test_seeds_reproduce_and_differ_between_prompts(model: Clover) -> None:
    options = {"max_new_tokens": 20, "temperature": 1.5}
    first, second = model.generate(["the cat", "the cat"], seed=1, **options)
    assert first.tokens != second.tokens
    again = model.generate(["the cat", "the cat"], seed=1, **options)
    assert [g.tokens for g in again] == [first.tokens, second.tokens]
    assert model.generate("the cat", seed=2, **options).tokens == second.tokens


def test_plain_decoding_and_trees_give_the_same_text(model: Clover, pair: tuple[Path, Path]) -> None:
    expected = model.generate("the cat sat", max_new_tokens=20).tokens
    assert clover.load(pair[0], tree="plain").generate("the cat sat", max_new_tokens=20).tokens == expected
    assert clover.load(*pair, tree="chain:3").generate("the cat sat", max_new_tokens=20).tokens == expected


def test_trees_differ_in_what_drafts(pair: tuple[Path, Path]) -> None:
    policies = {tree: clover.load(*pair, tree=tree).engine.policy for tree in ("auto", "own", "plain")}
    assert isinstance(policies["auto"], AutoPolicy)
    assert policies["own"].max_nodes > policies["plain"].max_nodes == 1
    assert clover.load(*pair, tree="chain:3").engine.policy.max_nodes == 4
    assert clover.load(*pair, tree="plain").engine.draft is None
    assert clover.load(pair[0], tree="lookup").engine.draft is None
    with pytest.raises(UserError, match="'fast'"):
        clover.load(*pair, tree="fast")


@pytest.mark.parametrize(
    ("function", "argument", "line"),
    [
        (clover.load, "method", 'give tree="own"'),
        (clover.load, "plain", 'give tree="plain"'),
        (Engine, "prefill_chunk", "give limits=EngineLimits"),
    ],
)
def test_removed_arguments_are_answered_by_what_replaces_them(
    function: Callable, argument: str, line: str
) -> None:
    with pytest.raises(UserError, match=line):
        function(**{argument: "draft"})


def test_a_tuning_beside_the_draft_is_used_where_it_fits(pair: tuple[Path, Path], tmp_path: Path) -> None:
    draft = shutil.copytree(pair[1], tmp_path / "draft")
    target = TargetModel.load(pair[0])
    for fingerprint, fits in (("another", False), (architecture_name(target.config), True)):
        choices = (Choice(1, "chain:2", 1.9, 0.02, 90.0), Choice(1, "plain", 1.0, 0.02, 50.0))
        found = Tuning("cpu", "float32", "", 1, "", {}, None, False, fingerprint, (), choices)
        write_entry(draft / "tuning.json", found)
        assert find_tuning(draft, target) == (found if fits else None)
    policy = clover.load(target, draft).engine.policy
    assert isinstance(policy, AutoPolicy)
    assert policy.choose(UpcomingStep(1)) is not None and policy.leader == "chain:2"
    (draft / "tuning.json").write_text("{}")
    assert clover.load(target, draft, tree="chain:3").engine.policy.max_nodes == 4, "it does not matter here"
    with pytest.raises(UserError, match="clover tune"):
        clover.load(target, draft)


def test_the_tuning_of_the_package_is_used_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clover.drafting.tuning.machine", lambda _: "another machine")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert find_tuning(assets.DRAFT, TargetModel.load(assets.TARGET)) is not None


def test_stop_strings_end_the_text(model: Clover) -> None:
    whole = model.generate("the cat", max_new_tokens=30, ignore_eos=True).text
    stop = whole[len(whole) // 2 :][:2]
    for given in ([stop], stop):
        result = model.generate("the cat", max_new_tokens=30, ignore_eos=True, stop=given)
        assert result.text == whole[: whole.index(stop)]
        assert result.finish_reason == "stop"


def test_a_conversation_says_what_a_fresh_run_would_say(model: Clover) -> None:
    chat = model.chat(max_new_tokens=16)
    for turn in ("hello", "the cat sat", "yes"):
        before = [*chat.messages, {"role": "user", "content": turn}]
        said = "".join(chat.say(turn))
        assert said == model.generate([before], max_new_tokens=16)[0].text
        assert chat.messages[-1] == {"role": "assistant", "content": said}
    assert chat.last is not None


def test_a_turn_that_begins_amid_another_changes_neither(model: Clover) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    chat = model.chat(**options)
    list(chat.say("hello"))
    before, first = list(chat.messages), chat.say("the cat sat")
    said = {"the cat sat": next(first), "yes": "".join(chat.say("yes"))}
    said["the cat sat"] += "".join(first)
    for question, answer in said.items():
        prompt: Any = [*before, {"role": "user", "content": question}]
        assert answer == model.generate(prompt, **options).text


def test_a_conversation_tells_what_was_not_run_again(model: Clover) -> None:
    chat = model.chat(max_new_tokens=8)
    cached = []
    for turn in ("hello", "yes"):
        list(chat.say(turn))
        assert chat.last is not None
        cached.append(chat.last.cached_tokens)
    assert cached[0] == 0 < cached[1]


def test_turns_of_a_conversation_are_drawn_by_numbers_of_their_own(model: Clover) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 3.0, "ignore_eos": True}
    chat, said = model.chat(seed=5, **options), list[tuple[int, ...]]()
    for turn in range(2):
        prompt: Any = [*chat.messages, {"role": "user", "content": "hello"}]
        list(chat.say("hello"))
        assert chat.last is not None
        said.append(chat.last.tokens)
        assert said[turn] == model.generate(prompt, seed=5 + turn, **options).tokens
    assert said[0] != said[1]


def test_a_conversation_outlives_an_answer_that_is_cut_short(model: Clover) -> None:
    chat = model.chat(max_new_tokens=30, ignore_eos=True)
    answer = chat.say("hello")
    said = next(answer) + next(answer)
    answer.close()
    assert chat.messages[-1]["content"] == said
    assert chat.last is None
    before = [*chat.messages, {"role": "user", "content": "the mat"}]
    expected = model.generate([before], max_new_tokens=30, ignore_eos=True)[0].text
    assert "".join(chat.say("the mat")) == expected


def test_the_last_generation_is_a_finished_one(model: Clover) -> None:
    chat = model.chat(max_new_tokens=8)
    list(chat.say("hello"))
    finished = chat.last
    next(chat.say("yes"))
    assert finished is not None and chat.last is finished


def test_a_question_that_cannot_be_answered_is_not_kept(model: Clover) -> None:
    chat = model.chat(max_new_tokens=8)
    first = "".join(chat.say("hello"))
    with pytest.raises(UserError, match="context"):
        list(chat.say("the cat " * 100))
    assert chat.messages == [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    assert "".join(chat.say("yes"))


def test_a_target_alone_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="no draft"):
        clover.load(target=pair[0])


@pytest.mark.parametrize("option", [{"dtype": "bfloat16"}, {"device": "cpu"}, {"weights": "int8"}])
def test_a_loaded_target_is_not_moved_without_a_word(model: Clover, option: dict[str, str]) -> None:
    with pytest.raises(UserError, match="leave dtype, device, weights and exact out"):
        clover.load(model.target, tree="plain", **option)  # type: ignore[arg-type]


def test_a_draft_alone_is_for_the_embedded_target() -> None:
    model = clover.load(draft="clover2", tree="chain:2")
    prompt = "def area(self):"
    plain = clover.load(tree="plain").generate(prompt, max_new_tokens=8)
    assert model.generate(prompt, max_new_tokens=8).tokens == plain.tokens


def test_plain_decoding_does_not_load_the_draft(pair: tuple[Path, Path]) -> None:
    assert clover.load(pair[0], "nowhere", tree="plain").engine.draft is None


def test_a_draft_that_prompt_lookup_would_ignore_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="lookup needs no draft; leave the draft out"):
        clover.load(pair[0], pair[1], tree="lookup")


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("a \udcff", {}),
        ([{"role": "user", "content": "a \udcff"}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}], {}),
        ("a", {"stop": ["b", "\ud83d"]}),
    ],
)
def test_half_characters_are_refused(model: Clover, prompt: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="half a character"):
        model.generate(prompt, **options)


def test_wrong_options_are_named(model: Clover) -> None:
    with pytest.raises(UserError, match="temprature"):
        model.generate("x", temprature=1.0)
    for seed in (-1, 2**63, 2**70, None, "1"):
        with pytest.raises(UserError, match="seed is .*; it must be"):
            model.generate(["x", "y"], seed=seed)
    with pytest.raises(UserError, match="seed is .*; it must be"):
        model.generate(["x", "y"], seed=2**63 - 1)  # the second one's is one more
    with pytest.raises(UserError, match="batch_size"):
        model.generate(["x"], batch_size=0)
    with pytest.raises(UserError, match="context"):
        model.generate("the cat " * 100)
