"""Build the grammar of a forced call: an answer that is one call of a tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from clover.chat.format import ChatFormat
from clover.chat.formats.base import ARGUMENTS, BLANK, CALL, CALL_WITH_PARAMETERS, ELEMENTS, NAME
from clover.chat.schemas import Schema, choices, followed, listed, mapping, types
from clover.errors import UserError

# The text of an argument without quotes. It must not contain the end of a call, which would cut it.
_TEXT = r"TEXT: /(?s:.*)/ & ~/(?s:.*)<\/tool_call>(?s:.*)/"


def call_grammar(format: ChatFormat, tools: Sequence[Schema], prompt: str) -> str:
    """Return the grammar, for `clover.grammar`, of an answer to `prompt` that is one call of a tool.

    UserError, which names the format, if calls in it cannot be forced.
    """
    if not format.forced:
        written = (
            f"in the format {format.name}" if format.name else "in the format of the tokenizer's own template"
        )
        raise UserError(
            f"calls {written} cannot be forced: no grammar is known for their arguments; use auto or none"
        )
    thought = ("</think>\n\n",) if prompt.rstrip().endswith("<think>") else ()
    rules = ["start: " + " | ".join(f"call{at}" for at in range(len(tools)))]
    for at, tool in enumerate(tools):
        parts = [_part(part, tool["function"], format) for part in (*thought, *format.forced)]
        own = list(_elements(f"call{at}", tool["function"], format)) if ELEMENTS in format.forced else []
        names = " ".join(name for name, _, _ in own)
        rules.append(f"call{at}: " + " ".join(names if part == ELEMENTS else part for part in parts))
        rules += [rule for _, *some in own for rule in some if rule]
    rules.append(_TEXT)
    return "lark:" + "\n".join(rules)


def _part(part: str, function: Schema, format: ChatFormat) -> str:
    """Return a part of a forced call in llguidance's form of Lark."""
    if part == BLANK:
        return '" "?'
    if part == ELEMENTS:
        return part
    arguments = function.get("parameters") or {"type": "object"}
    if part == ARGUMENTS:
        return _json(arguments)
    if part in (CALL, CALL_WITH_PARAMETERS):
        key = "arguments" if part == CALL else "parameters"
        called = {"name": {"const": function["name"]}, key: arguments}
        whole = {
            "type": "object",
            "properties": called,
            "required": list(called),
            "additionalProperties": False,
        }
        return _json(whole, arguments)
    return _literal(function["name"] if part == NAME else part, format)


def _literal(text: str, format: ChatFormat) -> str:
    """Return a text in Lark's form, with special tokens as numbers."""
    marks = "|".join(map(re.escape, sorted(format.special, key=len, reverse=True)))
    pieces = re.split(f"({marks})", text) if marks else [text]
    return " ".join(
        f"<[{format.special[piece]}]>" if piece in format.special else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
        if piece
    )


def _json(schema: Schema, parameters: Schema | None = None) -> str:
    """Return the rule for JSON that follows a schema. The definitions of `parameters` move to its top level."""
    named = {name: parameters[name] for name in ("$defs", "definitions") if parameters and name in parameters}
    dense = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%json {json.dumps({**schema, **named, 'x-guidance': dense})}"


def _elements(name: str, function: Schema, format: ChatFormat) -> Iterator[tuple[str, str, str]]:
    """Yield for each argument: the reference to its rule, the rule, and a rule for its text or "".

    Text that is not JSON ends at the closing tag. Arguments come in the order of the schema; required ones must come.
    """
    parameters = mapping(function.get("parameters"))
    for at, (key, said) in enumerate(mapping(parameters.get("properties")).items()):
        schema = followed(said, parameters)
        rule, (before, between, after) = f"{name}_{at}", format.element
        kinds, closing, more = set(types(schema, parameters)), _literal(after, format), ""
        texts = [value for value in choices(schema) if isinstance(value, str)]
        if texts and len(texts) == len(choices(schema)):
            value = "( " + " | ".join(_literal(text, format) if text else '""' for text in texts) + " )"
        elif kinds and "string" not in kinds:
            value = _json(schema, parameters)
        elif (tag := after.strip()) in format.special:
            value, more = f"{rule}_text", f"{rule}_text: TEXT"
        else:
            value, more = f"{rule}_text", f"{rule}_text[suffix={json.dumps(tag)}]: TEXT"
            closing = _literal(after.partition(tag)[2], format)
        begun = _literal(f"{before}{key}{between}", format)
        optional = "" if key in listed(parameters.get("required")) else "?"
        yield rule + optional, f"{rule}: {begun} {value} {closing}", more
