"""What does it bring that the draft proposes under the grammar?

    python benchmarks/grammar.py --target smollm2 --tree chain:4 --tree clover2

Six questions, each with a JSON schema, are answered in turn: plain, and by each tree with a draft that knows the
grammar (guided) and one that does not. All texts of a question must be equal. One JSON line per temperature and method:
τ, tokens per second, the middle speed-up over plain decoding, and milliseconds of a step by phase.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

import clover
from clover.engine import PhaseClock
from clover.sampling import Sampler


def object_of(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def some(items: Any, least: int, most: int) -> dict[str, Any]:
    """Return the schema of an array."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(length: int) -> dict[str, Any]:
    """Return the schema of a string of bounded length."""
    return {"type": "string", "maxLength": length}


PERSON = object_of(
    name=text(30),
    age={"type": "integer", "minimum": 0, "maximum": 120},
    city={"enum": ["Paris", "London", "New York"]},
    email=text(40),
    hobbies=some(text(20), 1, 4),
)
INGREDIENT = object_of(item=text(24), amount={"type": "number"}, unit={"enum": ["g", "ml", "pieces"]})
RECIPE = object_of(
    title=text(60),
    minutes={"type": "integer", "minimum": 1, "maximum": 600},
    ingredients=some(INGREDIENT, 2, 6),
    steps=some(text(80), 1, 5),
)
REVIEW = object_of(
    sentiment={"enum": ["positive", "negative", "neutral"]},
    confidence={"type": "number", "minimum": 0, "maximum": 1},
    reasons=some(text(60), 1, 3),
)
QUESTIONS = [
    ("Describe a person named Anna as JSON.", PERSON),
    ("Write a recipe for pancakes as JSON.", RECIPE),
    ("The review says: 'The food was cold and the waiter was rude.' Give the sentiment as JSON.", REVIEW),
    ("Invent a student from London as JSON.", PERSON),
    ("Write a recipe for tomato soup as JSON.", RECIPE),
    ("The review says: 'A wonderful film, I cried twice.' Give the sentiment as JSON.", REVIEW),
]
STATES: Any = Sampler.grammar_states


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target")
    parser.add_argument("--tree", action="append", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, action="append", default=[])
    options = parser.parse_args()
    models = {tree: clover.load(options.target, tree=tree) for tree in ("plain", *options.tree)}
    methods = [("plain", False), *((tree, guided) for tree in options.tree for guided in (True, False))]
    for temperature in options.temperature or [0.0, 0.7]:
        found = {method: list[Any]() for method in methods}
        for number, (question, schema) in enumerate(QUESTIONS):
            for tree, guided in methods if number % 2 else reversed(methods):
                sampling = {"temperature": temperature, "seed": number}
                answer(models[tree], guided, question, schema, 8, sampling)
                written = answer(models[tree], guided, question, schema, options.max_new_tokens, sampling)
                found[tree, guided].append(written)
            assert len({runs[-1][0].tokens for runs in found.values()}) == 1, "texts differ"
        for method, runs in found.items():
            print(json.dumps(describe(method, runs, found["plain", False], temperature)), flush=True)


def answer(
    model: Any, guided: bool, question: str, schema: Any, most: int, sampling: Any
) -> tuple[Any, PhaseClock]:
    """Return what is generated, and where the time goes."""
    Sampler.grammar_states = STATES if guided else ()
    chats = getattr(model.target.tokenizer, "chat_template", None)
    prompt = [{"role": "user", "content": question}] if chats else question + "\n"
    request, clock = model.request(prompt, grammar=schema, max_new_tokens=most, **sampling), PhaseClock()
    (generation,) = (event.generation for event in model.engine.run([request], clock) if event.generation)
    return generation, clock


def describe(method: tuple[str, bool], runs: Any, plain: Any, temperature: float) -> dict[str, Any]:
    """Return the line of one method."""
    tokens, steps = (sum(counts) for counts in zip(*((len(g.tokens), c.steps) for g, c in runs), strict=True))
    seconds = [clock.decoding_seconds for _, clock in runs]
    faster = [base.decoding_seconds / own for (_, base), own in zip(plain, seconds, strict=True)]
    phases = {
        name: sum(clock.seconds[name] for _, clock in runs) for name in ("draft", "run", "verify", "keep")
    }
    return {
        "tree": method[0],
        "guided": method[1],
        "temperature": temperature,
        "tokens": tokens,
        "tau": round(tokens / steps, 2),
        "tokens_per_second": round(tokens / sum(seconds), 1),
        "speedup": round(median(faster), 2),
        "step_ms": {name: round(1e3 * value / steps, 2) for name, value in phases.items()},
    }


if __name__ == "__main__":
    main()
