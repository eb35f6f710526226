from collections.abc import Iterator

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clover.measure.kinds import (
    DIGITS,
    PUNCTUATION,
    SPACE,
    SPECIAL,
    TOKEN_KINDS,
    WORD_INSIDE,
    WORD_START,
    kind_of,
    kinds_of,
)

CASES = [  # pieces of a text, and the kind of each; the first is the prompt's
    ("def", None),
    (" area", WORD_START),
    ("_of", WORD_INSIDE),
    ("(", PUNCTUATION),
    ("self", WORD_START),
    (".", PUNCTUATION),
    ("x", WORD_START),
    ("2", DIGITS),
    ("y", WORD_INSIDE),
    ("):\n", PUNCTUATION),
    ("    ", SPACE),
    ("return", WORD_START),
    (" 17", DIGITS),
    ("\n", SPACE),
    ("naï", WORD_START),
    ("ve", WORD_INSIDE),
    (" —", PUNCTUATION),
    ("<end>", SPECIAL),
    ("go", WORD_START),
]


def byte_level() -> PreTrainedTokenizerFast:
    """Tokens are the pieces, spelled as byte-level BPE does, and all single bytes."""
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = ["".join(part for part, _ in byte.pre_tokenize_str(piece)) for piece, _ in CASES]
    vocabulary = dict.fromkeys([*spelled, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, spelled[0]))
    inner.decoder = decoders.ByteLevel()
    return wrapped(inner)


def sentence_piece() -> PreTrainedTokenizerFast:
    """Tokens are the pieces with "▁" for spaces, and all single bytes as "<0x..>"."""
    spelled = [piece.replace(" ", "▁") for piece, _ in CASES]
    spelled[0] = "▁def"
    vocabulary = dict.fromkeys([*spelled, "▁", *(f"<0x{byte:02X}>" for byte in range(256))])
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, spelled[0]))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(inner)


def wrapped(inner: Tokenizer) -> PreTrainedTokenizerFast:
    inner.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


def ids(tokenizer: PreTrainedTokenizerFast, spell: list[str]) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[token] for token in spell]


def spelled_cases(style: str) -> tuple[PreTrainedTokenizerFast, list[int]]:
    if style == "byte level":
        byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        spell = ["".join(part for part, _ in byte.pre_tokenize_str(piece)) for piece, _ in CASES]
        spell = ["<end>" if piece == "<end>" else token for (piece, _), token in zip(CASES, spell)]
        tokenizer = byte_level()
    else:
        spell = ["▁def", *(piece.replace(" ", "▁") for piece, _ in CASES[1:])]
        tokenizer = sentence_piece()
    return tokenizer, ids(tokenizer, spell)


@pytest.mark.parametrize("style", ["byte level", "SentencePiece"])
def test_kinds_are_the_same_in_both_styles(style: str) -> None:
    tokenizer, tokens = spelled_cases(style)
    expected = [kind for _, kind in CASES[1:]]
    assert kinds_of(tokenizer, [(tokens, 1), (tokens, len(tokens) - 1)]) == [expected, expected[-1:]]


def parts_of_a_character() -> Iterator[tuple[PreTrainedTokenizerFast, list[str]]]:
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    euro = "".join(part for part, _ in byte.pre_tokenize_str("€"))
    yield byte_level(), ["def", *euro, "x"]
    yield sentence_piece(), ["▁def", "<0xE2>", "<0x82>", "<0xAC>", "x"]


@pytest.mark.parametrize("case", range(2))
def test_parts_of_a_character_are_inside_a_word(case: int) -> None:
    tokenizer, spell = list(parts_of_a_character())[case]
    (found,) = kinds_of(tokenizer, [(ids(tokenizer, spell), 1)])
    assert found[:3] == [WORD_INSIDE] * 3
    assert found[3] == WORD_START  # a currency sign ends no word


def test_a_lone_space_mark_is_white_space() -> None:
    tokenizer = sentence_piece()
    assert kinds_of(tokenizer, [(ids(tokenizer, ["▁def", "▁", "x"]), 1)]) == [[SPACE, WORD_START]]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("", "word", WORD_START),
        ("don", "don't", PUNCTUATION),
        ("a\n", "a\nb", WORD_START),
        ("x1", "x1b", WORD_INSIDE),
        ("self.", "self._name", WORD_START),
        ("v", "v٣", DIGITS),
        ("字", "字母", WORD_INSIDE),
        ("a", "a\t\n ", SPACE),
        ("a", "a", WORD_INSIDE),
        ("a\ufffd", "aé", WORD_INSIDE),
    ],
)
def test_what_a_token_adds_decides(before: str, after: str, kind: str) -> None:
    assert kind_of(before, after) == kind
    assert kind in TOKEN_KINDS
