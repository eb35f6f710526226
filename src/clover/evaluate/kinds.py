"""Kinds of tokens by the text they stand for, whatever the tokenizer's own marks for spaces and bytes are.

A token is decoded after the tokens before it, and what it adds to the text decides: byte-level BPE ("Ġword"),
SentencePiece ("▁word") and byte fallback ("<0xE2>") all come out alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD_START, WORD_INSIDE, DIGITS = "first of a word", "inside a word", "digits"
PUNCTUATION, SPACE, SPECIAL = "punctuation", "white space", "special"
TOKEN_KINDS = (WORD_START, WORD_INSIDE, DIGITS, PUNCTUATION, SPACE, SPECIAL)
_CONTEXT = 4  # tokens that are decoded before a token
_HALF_CHARACTER = "\ufffd"


class TokenKinds:
    """Says of which kind tokens are; keeps what it has found out.

    The first character that is no space decides: a letter or "_" (a word goes on if such a character or a digit stands
    right before), a digit, or else punctuation. A token that holds a part of a character is inside a word.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, tokens: Sequence[int], start: int) -> list[str]:
        """Kinds of `tokens[start:]`, each one of TOKEN_KINDS; what is before `start` is context."""
        return [self._kind(tuple(tokens[max(0, at - _CONTEXT) : at + 1])) for at in range(start, len(tokens))]

    def _kind(self, window: tuple[int, ...]) -> str:
        if window[-1] in self.special:
            return SPECIAL
        if window not in self._known:
            before, after = self._decode(window[:-1]), self._decode(window)
            self._known[window] = kind_of(before, after)
        return self._known[window]

    def _decode(self, tokens: tuple[int, ...]) -> str:
        return self.tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def kind_of(before: str, after: str) -> str:
    """Kind of the token that makes the text `before` into `after`.

    >>> kind_of("def", "def area"), kind_of("def ar", "def area"), kind_of("x", "x[0")
    ('first of a word', 'inside a word', 'punctuation')
    """
    piece = after[len(before) :] if after.startswith(before) else _HALF_CHARACTER
    if not piece or _HALF_CHARACTER in piece:
        return WORD_INSIDE
    core = piece.lstrip()
    if not core:
        return SPACE
    if core[0].isdigit():
        return DIGITS
    if not _in_word(core[0]):
        return PUNCTUATION
    goes_on = core == piece and before and _in_word(before[-1])
    return WORD_INSIDE if goes_on else WORD_START


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
