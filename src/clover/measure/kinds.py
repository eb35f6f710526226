"""Sort tokens into kinds by their text, independent of a tokenizer's marks for spaces and bytes.

A token is decoded together with the tokens before it, and the text that it adds determines its kind. So byte-level BPE
("Ġword"), SentencePiece ("▁word") and byte fallback ("<0xE2>") give the same kinds.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from clover.engine.text import HALF_CHARACTER

WORD_START, WORD_INSIDE, DIGITS = "first of a word", "inside a word", "digits"
PUNCTUATION, SPACE, SPECIAL = "punctuation", "white space", "special"
TOKEN_KINDS = (WORD_START, WORD_INSIDE, DIGITS, PUNCTUATION, SPACE, SPECIAL)
_CONTEXT = 4  # tokens that are decoded before a token


def kinds_of(tokenizer: Any, texts: Sequence[tuple[Sequence[int], int]]) -> list[list[str]]:
    """Return the kinds, from TOKEN_KINDS, of `tokens[start:]` in each text (tokens, start); the rest is context."""
    special = set(tokenizer.all_special_ids)

    @cache
    def kind(window: tuple[int, ...]) -> str:
        if window[-1] in special:
            return SPECIAL
        options: Any = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        before, after = (tokenizer.decode(list(part), **options) for part in (window[:-1], window))
        return kind_of(before, after)

    return [
        [kind(tuple(tokens[max(0, at - _CONTEXT) : at + 1])) for at in range(start, len(tokens))]
        for tokens, start in texts
    ]


def kind_of(before: str, after: str) -> str:
    """Return the kind of the token that turns the text `before` into `after`.

    The first character that is not a space determines it: a letter or "_" (inside a word if a letter, a digit or "_"
    is directly before it), a digit, or else punctuation. A token that is a part of a character is inside a word.

    >>> kind_of("def", "def area"), kind_of("def ar", "def area"), kind_of("x", "x[0")
    ('first of a word', 'inside a word', 'punctuation')
    """
    piece = after[len(before) :] if after.startswith(before) else HALF_CHARACTER
    if not piece or HALF_CHARACTER in piece:
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
