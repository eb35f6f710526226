"""Texts that follow a grammar: a JSON schema, a regular expression, or a grammar in the form of Lark.

The library llguidance decides which tokens may follow a text (`pip install llguidance`, the extra `grammar`). All other
tokens get the logit -inf, at every node of a drafted tree according to the node's path. So grammars act on trees
exactly as on plain decoding. The draft proposes tokens under the same states (`clover.drafting.guide`).

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clover.errors import UserError
from clover.files import read_text
from clover.sampling import GrammarState
from clover.target import Target
from clover.validation import parse_json

GrammarSpec = str | Mapping[str, Any]
# Between the parts of JSON: one blank, or a new line with indentation. Otherwise small models write endless blanks.
_JSON: Any = {"whitespace_pattern": r" |\n( {0,16}|\t{0,4})"}
_FORMS = "a grammar is json, a JSON schema, FILE.json with one, regex:EXPRESSION, lark:GRAMMAR, or FILE.lark with one"


def read_grammar(spec: GrammarSpec) -> tuple[str, Any]:
    """Return the kind of a grammar, "json", "regex" or "lark", and its JSON schema, expression or grammar.

    A mapping is a JSON schema. UserError, which lists the valid forms, if the text has none of them.

    >>> read_grammar("json"), read_grammar("regex:[0-9]+")
    (('json', {'type': 'object'}), ('regex', '[0-9]+'))
    """
    if isinstance(spec, Mapping):
        return "json", dict(spec)
    if not isinstance(spec, str):
        raise UserError(f"{_FORMS}; this is {type(spec).__name__}")
    if spec == "json":
        return "json", {"type": "object"}
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("regex", "lark"):
        return kind, rest
    if spec.endswith((".json", ".lark")):
        text, kind = read_text(Path(spec)), spec[-4:]
    elif spec.lstrip().startswith("{"):
        text, kind = spec, "json"
    else:
        raise UserError(f"{_FORMS}; {spec[:80]!r} is none of them")
    return kind, parse_json(text, "the JSON schema") if kind == "json" else text


class Grammars:
    """Makes grammars for the vocabulary of a target, which is read once, in about a second if it is large.

    UserError if llguidance is missing, the tokenizer is not one of the package tokenizers, or no token ends a text.

    Attributes:
        limits: the limits of a grammar's complexity, as llguidance's `LLParserLimits`; None for its defaults.
    """

    limits: Any = None

    def __init__(self, target: Target):
        try:
            import llguidance
            from llguidance import hf
        except ModuleNotFoundError as error:
            raise UserError(f"a grammar needs llguidance: pip install llguidance ({error})") from error
        tokenizer, self._ends = target.require_tokenizer(), frozenset(target.eos_token_ids)
        if not self._ends:
            raise UserError("the target has no end-of-sequence token, so no text under a grammar would end")
        self._matcher, self._vocab_size = llguidance.LLMatcher, target.vocab_size
        size = max(len(tokenizer), target.vocab_size)
        try:
            self._tokenizer = hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(self._ends))
        except ValueError as error:
            raise UserError(f"the target's tokenizer does not support grammars: {error}") from error

    def start(self, spec: GrammarSpec) -> TextState:
        """Return the state of an empty text, for `SamplingParams.grammar`.

        Raises UserError if the grammar is invalid, or uses features that llguidance does not support.
        """
        kind, grammar = read_grammar(spec)
        make: dict[str, Callable[[Any], str]] = {
            "json": lambda schema: self._matcher.grammar_from_json_schema(schema, defaults=_JSON),
            "regex": self._matcher.grammar_from_regex,
            "lark": self._matcher.grammar_from_lark,
        }
        try:
            matcher = self._matcher(self._tokenizer, make[kind](grammar), log_level=0, limits=self.limits)
        except ValueError as error:
            raise UserError(f"the grammar cannot be used: {error}") from error
        if matcher.is_error():
            raise UserError(f"the grammar cannot be used: {' '.join(matcher.get_error().split())}")
        return TextState(matcher, 0, self._ends, self._vocab_size)


class TextState(GrammarState):
    """The state of one text in llguidance.

    A longer text is read by a copy of the matcher. Matchers can also go back, but llguidance 1.9 then sometimes allows
    other tokens than without going back.
    """

    def __init__(self, matcher: Any, length: int, ends: frozenset[int], vocab_size: int):
        self._matcher, self._length, self._ends, self._vocab_size = matcher, length, ends, vocab_size
        self._below = dict[int, GrammarState | None]()  # by the next token

    def fresh(self) -> TextState:
        return TextState(self._matcher.deep_copy(), self._length, self._ends, self._vocab_size)

    def after(self, token: int) -> GrammarState | None:
        if token not in self._below:
            self._below[token] = self._follow(token)
        return self._below[token]

    def _follow(self, token: int) -> GrammarState | None:
        if not self._bits[token // 8] >> token % 8 & 1:
            return None
        if token in self._ends:
            return _ENDED
        matcher = self._matcher.deep_copy()
        matcher.consume_token(token)
        return TextState(matcher, self._length + 1, self._ends, self._vocab_size)

    @cached_property
    def _bits(self) -> np.ndarray:
        """Return which tokens may follow, one bit each, lowest bit first; none if llguidance has failed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)[
            : -(-self._vocab_size // 8)
        ].copy()
        bits[-1] &= 0xFF >> -self._vocab_size % 8
        return np.zeros_like(bits) if self._matcher.is_error() else bits

    @property
    def error(self) -> str:
        return self._error

    @property
    def excluded(self) -> Tensor | None:
        return None if self._error else self._excluded

    @property
    def only(self) -> int | None:
        return self._only

    @cached_property
    def _error(self) -> str:
        if self._bits.any():
            return ""
        reason = self._matcher.get_error().partition("\n")[0] or "no token may follow"
        return f"the grammar is too complex after {self._length} tokens ({reason}); simplify it"

    @cached_property
    def _excluded(self) -> Tensor:
        bits = np.unpackbits(~self._bits, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(bool))

    @cached_property
    def _only(self) -> int | None:
        (places,) = self._bits.nonzero()
        if len(places) != 1 or (bits := int(self._bits[places[0]])) & (bits - 1):
            return None
        return int(places[0]) * 8 + bits.bit_length() - 1


class _EndedState(GrammarState):
    """The state of a text that has ended; later tokens do not matter."""

    @property
    def error(self) -> str:
        return ""

    @property
    def excluded(self) -> None:
        return None

    @property
    def only(self) -> None:
        return None

    def fresh(self) -> GrammarState:
        return self

    def after(self, token: int) -> GrammarState:
        return self


_ENDED = _EndedState()
