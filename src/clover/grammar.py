"""Texts that follow a grammar: a JSON schema, a regular expression, or a grammar in the form of Lark.

The library llguidance says which tokens may follow a text (`pip install llguidance`, the extra `grammar`). All others
get the logit -inf, at every node of a drafted tree by the text that leads to it. So a tree is verified under the
grammar exactly as plain decoding is. The draft does not know the grammar: what it proposes against it is refused.

Shapes: P texts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clover.errors import UserError
from clover.files import read_text
from clover.target import Target
from clover.validation import parse_json

GrammarSpec = str | Mapping[str, Any]
# Between the parts of JSON: one blank, or a new line and its indentation. Small models else write blanks for ever.
_JSON: Any = {"whitespace_pattern": r" |\n( {0,16}|\t{0,4})"}
_KEPT = 64  # matchers of texts that the present ones begin with: more than a tree is deep
_FORMS = "a grammar is json, a JSON schema, FILE.json with one, regex:EXPRESSION, lark:GRAMMAR, or FILE.lark with one"


def read_grammar(spec: GrammarSpec) -> tuple[str, Any]:
    """Return the kind of a grammar, "json", "regex" or "lark", and its JSON schema, expression or grammar.

    A mapping is a JSON schema. UserError if the text is none of the forms that the message names.

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
    """Makes grammars for the vocabulary of a target, which is read once: a second or so for a large one.

    UserError if llguidance is missing, the tokenizer is none of the package tokenizers, or no token ends a text.
    """

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
            raise UserError(f"the target's tokenizer does not go with a grammar: {error}") from error

    def start(self, spec: GrammarSpec, prompt_tokens: int) -> GrammarProcess:
        """Return the `SamplingParams.process` of one text after a prompt of so many tokens.

        Raises UserError if the grammar is none, or says what llguidance does not support.
        """
        kind, grammar = read_grammar(spec)
        make: dict[str, Callable[[Any], str]] = {
            "json": lambda schema: self._matcher.grammar_from_json_schema(schema, defaults=_JSON),
            "regex": self._matcher.grammar_from_regex,
            "lark": self._matcher.grammar_from_lark,
        }
        try:
            matcher = self._matcher(self._tokenizer, make[kind](grammar), log_level=0)
        except ValueError as error:
            raise UserError(f"the grammar cannot be used: {error}") from error
        if matcher.is_error():
            raise UserError(f"the grammar cannot be used: {' '.join(matcher.get_error().split())}")
        return GrammarProcess(matcher, prompt_tokens, self._ends, self._vocab_size)


class GrammarProcess:
    """Excludes the tokens that a grammar does not allow after a text.

    Each matcher has read one text, and a copy of it goes on along a longer one. Matchers can also go back, but the
    tokens that llguidance 1.9 allows after that are not always those that it allows otherwise.
    """

    def __init__(self, matcher: Any, prompt_tokens: int, ends: frozenset[int], vocab_size: int):
        self._prompt_tokens, self._ends, self._vocab_size = prompt_tokens, ends, vocab_size
        self._matchers: dict[tuple[int, ...], Any] = {(): matcher}  # by the new tokens that each has read

    def __call__(self, texts: Tensor, logits: Tensor) -> Tensor:
        """Set logits [P, V] of what follows texts Long [P, T], prompt included, to -inf where it is not allowed."""
        new = [tuple(text) for text in texts[:, self._prompt_tokens :].tolist()]
        begun = [read for read in self._matchers if any(text[: len(read)] == read for text in new)]
        kept = [(), *sorted(begun, key=len)[-_KEPT:]]
        self._matchers = {read: self._matchers[read] for read in kept}
        excluded = torch.from_numpy(np.stack([self._excluded(text) for text in new]))
        return logits.masked_fill_(excluded.to(logits.device), -torch.inf)

    def _excluded(self, new: tuple[int, ...]) -> np.ndarray:
        """Return which tokens may not follow, Bool [V]; none after an end-of-sequence token, where nothing counts."""
        if not self._ends.isdisjoint(new):
            return np.zeros(self._vocab_size, dtype=bool)
        known = max((read for read in self._matchers if new[: len(read)] == read), key=len)
        matcher = self._matchers[known]
        if len(known) < len(new):
            matcher = self._matchers[new] = matcher.deep_copy()
            followed = matcher.consume_tokens(list(new[len(known) :]))
            assert followed, "a text under a grammar holds no token that it excludes"
        bits = ~np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise UserError(f"the grammar is too complex for llguidance after {len(new)} tokens; simplify it")
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(bool)
