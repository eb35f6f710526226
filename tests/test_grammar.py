"""Texts under a grammar: those of plain decoding with every tree and batch, and valid."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("llguidance")
import jsonschema_rs

from clover import assets
from clover.api import Clover
from clover.drafting import parse_tree
from clover.engine import Engine
from clover.errors import UserError
from clover.grammar import GrammarProcess, Grammars, read_grammar
from clover.target import TargetModel
from tests.audit.conftest import LastTokenDraft
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
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
        texts = torch.tensor([new], dtype=torch.long)
        assert token == int(grammars.start(PET, 0)(texts, logits.clone()).argmax())
        new.append(token)


def test_what_is_allowed_does_not_depend_on_what_was_read_before() -> None:
    """Random branches of texts with blanks, as trees have them; each is held against a grammar that reads it alone."""
    target, random = TargetModel.load(assets.TARGET), Random(0)
    grammars, logits = Grammars(target), torch.zeros(1, target.vocab_size)
    process, text = grammars.start(PET, 0), list[int]()

    def allowed_after(process: GrammarProcess, *texts: list[int]) -> list[list[int]]:
        rows = process(torch.tensor(texts, dtype=torch.long), logits.repeat(len(texts), 1))
        return [torch.nonzero(row == 0).flatten().tolist() for row in rows]

    for _ in range(40):
        branches = [text]
        for _ in range(3):
            allowed = allowed_after(process, *branches)
            assert allowed == [allowed_after(grammars.start(PET, 0), one)[0] for one in branches]
            if any(set(target.eos_token_ids) & set(some) for some in allowed):
                return
            branches = [[*one, random.choice(some)] for one, some in zip(branches, allowed) for _ in range(2)]
        text = branches[random.randrange(len(branches))][: len(text) + random.randrange(1, 4)]


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
