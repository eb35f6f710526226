"""Texts under a grammar: those of plain decoding with every tree and batch, and valid."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("llguidance")
import jsonschema_rs
import llguidance

import clover
from clover import assets
from clover.api import Clover
from clover.drafting import parse_tree
from clover.engine import Engine
from clover.errors import UserError
from clover.grammar import Grammars, read_grammar
from clover.sampling import Sampler
from clover.target import TargetModel
from tests.audit.conftest import LastTokenDraft
from tests.families import by_turns
from tests.tiny import save_tiny_pair

PET = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog", "the mat"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
}
YES = {"enum": ["yes", "no", "the answer is yes"]}
PLACE = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9},
    "minItems": 2,
    "maxItems": 4,
}
SCHEMAS = [PET, YES, PLACE]
PROMPTS = [
    '{"kind":"cat","age":3,"tags":[true,false]} the cat',
    "the mat is [1,2,3] and the",
    'answer "yes" is',
]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
TREES = ("chain:4", "clover2", "lookup", "drawn:clover2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target, _ = save_tiny_pair(tmp_path_factory.mktemp("grammar"), context=256)
    return target


def models(folder: Path, dtype: str, *trees: str) -> dict[str, Clover]:
    """Plain decoding and trees of one target, with a draft that knows what it says after each token alone."""
    target = TargetModel.load(folder, dtype=dtype)
    draft: Any = LastTokenDraft(target)
    engines = {tree: Engine(target, draft if parse_tree(tree).needs_draft else None, tree) for tree in trees}
    return {name: Clover(engine) for name, engine in ({"plain": Engine(target)} | engines).items()}


def write(model: Clover, sampling: dict[str, Any], batch_size: int, seeds: int = 2) -> list[Any]:
    """The generations of all prompts under all schemas, in batches of different grammars, and rows without one."""
    requests = [
        model.request(prompt, max_new_tokens=40, grammar=schema, seed=seed, **sampling)
        for prompt in PROMPTS
        for schema in (*SCHEMAS, None)
        for seed in range(seeds)
    ]
    events = model.engine.run(requests, max_sequences=batch_size)
    found = {event.index: event.generation for event in events if event.generation is not None}
    return [found[at] for at in range(len(requests))]


def check_valid(generations: list[Any], seeds: int) -> int:
    """Check the texts that ended by themselves; return how many there are."""
    schemas = [schema for _ in PROMPTS for schema in (*SCHEMAS, None) for _ in range(seeds)]
    ended = [(g, s) for g, s in zip(generations, schemas) if s is not None and g.finish_reason == "stop"]
    for generation, schema in ended:
        assert jsonschema_rs.is_valid(schema, json.loads(generation.text)), generation.text
    return len(ended)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "sampling", [pytest.param({}, marks=pytest.mark.long), SAMPLED], ids=["greedy", "sampled"]
)
def test_trees_and_batches_write_what_plain_decoding_writes(
    folder: Path, dtype: str, sampling: dict[str, Any]
) -> None:
    seeds = 2 if sampling else 1
    plain, *others = models(folder, dtype, "chain:4", "clover2", "lookup").values()
    expected = write(plain, sampling, 1, seeds)
    assert check_valid(expected, seeds) >= len(expected) / 2
    accepted = 0
    for model in others:
        for batch_size in (1, 5):
            found = write(model, sampling, batch_size, seeds)
            assert [one.tokens for one in found] == [one.tokens for one in expected]
            accepted += sum(one.acceptance.accepted for one in found)
    assert accepted > 0


@pytest.mark.parametrize(
    "tree", by_turns(["chain:4", "clover2", "lookup", "chain:6:0.05", "eagle2:20", "budget:6"])
)
def test_what_is_drafted_follows_the_grammar(
    folder: Path, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So more of it is accepted; tokens that are forced are drafted though the draft does not know them."""
    model = models(folder, "float32", tree)[tree]
    guided = write(model, {}, 3, 1)
    monkeypatch.setattr(Sampler, "grammar_states", ())
    free = write(model, {}, 3, 1)
    assert [one.tokens for one in guided] == [one.tokens for one in free]
    steps, before = (sum(one.acceptance.steps for one in some) for some in (guided, free))
    assert steps < before


@pytest.mark.long
def test_compiled_steps_draft_under_the_grammar_too(tmp_path: Path) -> None:
    """In as many steps as others, with the same texts; texts without a grammar run beside them."""
    pair, found = save_tiny_pair(tmp_path, context=256), list[Any]()
    for compile in (False, "eager"):
        model = clover.load(*map(str, pair), tree="chain:3", compile=compile)
        requests = [model.request(PROMPTS[0], max_new_tokens=24, grammar=one) for one in (PET, None)]
        runs = [model.engine.run(some) for some in (requests, requests[1:], requests[:1])]
        found.append([event.generation for run in runs for event in run if event.generation])
    plain, compiled = ([(one.tokens, one.acceptance) for one in some] for some in found)
    assert compiled == plain
    assert found[1][-1].acceptance.accepted > 3, "it draws from what the grammar leaves"


def test_chains_hold_no_token_that_is_excluded(folder: Path) -> None:
    target = TargetModel.load(folder, dtype="float32")
    draft: Any = LastTokenDraft(target)
    model = Clover(Engine(target, draft, "chain:4"))
    requests = [
        replace(model.request(prompt, max_new_tokens=40, grammar=PET), show_trees=True) for prompt in PROMPTS
    ]
    grammars, drafted, states = Grammars(target), 0, dict[int, Any]()
    for event in model.engine.run(requests):
        state = above = states.setdefault(event.index, grammars.start(PET))
        assert event.drafted is not None
        for token in event.drafted.tokens:
            above = above.after(token)
            assert above is not None
            drafted += 1
        for token in event.tokens:
            state = state.after(token)
        states[event.index] = state
    assert drafted > 50


@pytest.mark.parametrize("tree", ["plain", "chain:4", "clover2", "drawn:chain:3"])
def test_a_grammar_that_is_too_complex_ends_its_own_text_alone(folder: Path, tree: str) -> None:
    """After a few tokens, amid a batch; what the text had is what it has in plain decoding."""
    schema = {
        "type": "object",
        "properties": {"a": YES, "b": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]}},
        "required": ["a", "b"],
    }
    several = models(folder, "float32", *({tree} - {"plain"}))
    broken = dict[str, Any]()
    for name, model in several.items():
        good = [model.request(PROMPTS[0], max_new_tokens=40, grammar=one) for one in (PET, None)]
        expected = [model.engine.run([one]) for one in good]
        tokens = [[token for event in events for token in event.tokens] for events in expected]
        model._grammars = Grammars(model.target)
        model._grammars.limits = llguidance.LLParserLimits(step_max_items=20)
        bad = model.request(PROMPTS[0], max_new_tokens=40, grammar=schema)
        decoding, found = model.engine.open(3), dict[int, Any]()
        for request in (good[0], bad, good[1]):
            decoding.add(request)
        while not decoding.idle:
            found |= {event.index: event.generation for event in decoding.step() if event.generation}
        assert [list(found[at].tokens) for at in (0, 2)] == tokens
        broken[name] = found[1]
        assert broken[name].finish_reason == "error" and len(broken[name].tokens) > 3
        assert re.match(r"the grammar is too complex after \d+ tokens \(.*Too many items", broken[name].error)
        with pytest.raises(UserError, match="^the grammar is too complex"):
            model.generate(PROMPTS[0], max_new_tokens=40, grammar=schema)
    assert len({one.tokens for one in broken.values()}) == 1


def test_drawn_trees_write_valid_texts(folder: Path) -> None:
    found = write(models(folder, "float32", "drawn:clover2")["drawn:clover2"], SAMPLED, 4)
    assert check_valid(found, 2) > 0


@pytest.mark.long
def test_two_hundred_texts_are_those_of_plain_decoding(folder: Path) -> None:
    plain, *others = models(folder, "float32", "chain:4", "clover2").values()
    for sampling, seeds in (({}, 1), (SAMPLED, 16)):
        expected = write(plain, sampling, 8, seeds)
        assert check_valid(expected, seeds) > 0
        for model in others:
            for batch_size in (1, 8):
                found = write(model, sampling, batch_size, seeds)
                assert [one.tokens for one in found] == [one.tokens for one in expected]


def test_each_token_is_the_best_that_the_grammar_allows(folder: Path) -> None:
    """Held against the model's own logits and a grammar that reads each text from its start."""
    target = TargetModel.load(folder, dtype="float64")
    model, grammars, new = Clover(Engine(target)), Grammars(target), list[int]()
    prompt = model.encode(PROMPTS[0])
    for token in model.generate(PROMPTS[0], grammar=PET, max_new_tokens=30).tokens:
        with torch.inference_mode():
            logits = target.model(input_ids=torch.tensor([prompt + new]), use_cache=False).logits[:, -1]
        state = state_after(grammars, new)
        assert state.excluded is not None
        assert token == int(logits[0].masked_fill(state.excluded, -torch.inf).argmax())
        new.append(token)


def state_after(grammars: Grammars, text: list[int]) -> Any:
    """The state of a text that is read from its start."""
    state: Any = grammars.start(PET)
    for token in text:
        state = state.after(token)
    return state


def test_what_is_allowed_does_not_depend_on_what_was_read_before() -> None:
    """Random branches of texts with blanks, as trees have them; each is held against a grammar that reads it alone."""
    target, random = TargetModel.load(assets.TARGET), Random(0)
    grammars = Grammars(target)
    state, text, forced = grammars.start(PET), list[int](), 0
    for _ in range(40):
        branches = [(state, text)]
        for _ in range(3):
            for branch, read in branches:
                alone = state_after(grammars, read)
                assert branch.excluded.equal(alone.excluded) and branch.only == alone.only
                allowed = (~branch.excluded).nonzero().flatten().tolist()
                assert allowed and branch.only == (allowed[0] if len(allowed) == 1 else None)
                assert branch.after(int(branch.excluded.nonzero()[0])) is None
                forced += branch.only is not None
                if set(target.eos_token_ids) & set(allowed):
                    assert forced > 0
                    return
            branches = [
                (branch.after(token), [*read, token])
                for branch, read in branches
                for token in random.choices((~branch.excluded).nonzero().flatten().tolist(), k=2)
            ]
        state, text = branches[random.randrange(len(branches))]


def test_a_grammar_goes_with_stop_strings_and_short_texts(folder: Path) -> None:
    plain, drafting = models(folder, "float32", "clover2").values()
    for options in ({"max_new_tokens": 3}, {"max_new_tokens": 40, "stop": ","}):
        texts = [model.generate(PROMPTS[0], grammar=PET, **options) for model in (plain, drafting)]
        assert texts[0].tokens == texts[1].tokens and texts[0].text == texts[1].text
    assert texts[0].finish_reason == "stop" and "," not in texts[0].text


def test_expressions_and_grammars_of_lark(folder: Path, tmp_path: Path) -> None:
    model = models(folder, "float32", "lookup")["lookup"]
    text = model.generate(PROMPTS[1], grammar="regex:[ab]{3}-[0-9]{2}", max_new_tokens=20).text
    assert re.fullmatch("[ab]{3}-[0-9]{2}", text)
    file = tmp_path / "rules.lark"
    file.write_text('start: "cat" | "dog" num\nnum: /[0-9]/\n')
    for grammar in (str(file), f"lark:{file.read_text()}"):
        assert re.fullmatch("cat|dog[0-9]", model.generate("the", grammar=grammar, max_new_tokens=20).text)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(YES))
    for grammar in (str(schema), json.dumps(YES), YES):
        assert json.loads(model.generate("the", grammar=grammar, max_new_tokens=40).text) in YES["enum"]


@pytest.mark.parametrize(
    ("grammar", "more", "message"),
    [
        ("no such form", {}, "is none of them"),
        (7, {}, "this is int"),
        ("missing.json", {}, "missing.json"),
        ("{", {}, "not valid JSON"),
        ("regex:[ab", {}, "unclosed character class"),
        ({"$ref": "#/missing"}, {}, "cannot be used"),
        ("lark:start: missing", {}, "cannot be used"),
        ("json", {"ignore_eos": True}, "ignore_eos"),
        ("json", {"banned_tokens": (5,)}, "excluded"),
        ("json", {"process": lambda texts, logits: logits}, "excluded"),
    ],
)
def test_what_cannot_be_used_is_an_error(
    folder: Path, grammar: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        models(folder, "float32")["plain"].generate("the", grammar=grammar, **more)
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match="pip install llguidance"):
        models(folder, "float32")["plain"].generate("the", grammar="json")


def test_the_command_writes_what_the_grammar_allows(run_clover: Callable, folder: Path) -> None:
    flags = ("generate", "the", "--target", folder, "--tree", "lookup", "--grammar")
    done = run_clover(*flags, "regex:[0-9]{4}")
    assert done.code == 0 and re.fullmatch("[0-9]{4}\n", done.out)
    assert run_clover(*flags, "[0-9]").code == 2
    assert read_grammar("json") == ("json", {"type": "object"})
