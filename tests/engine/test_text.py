"""Text that comes piece by piece equals the text decoded at once, and ends before its stop strings."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from clover.engine import Request
from clover.engine.sequences import RunningSequence
from clover.engine.text import Detokenizer, token_name
from tests.data.tokenizers import make_tokenizer

TOKENIZER = make_tokenizer()


def stream(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[str, Detokenizer]:
    detokenizer = Detokenizer(TOKENIZER, stop)
    pieces, completed = [], ""
    for number, token in enumerate(tokens):
        pieces.append(detokenizer.push(token))
        assert "".join(pieces) == detokenizer.text[: len("".join(pieces))]
        if detokenizer.stopped or number == len(tokens) - 1:
            break
        completed += detokenizer.piece
    pieces.append(detokenizer.finish())
    completed += detokenizer.piece
    assert completed.startswith(detokenizer.text) and (completed == detokenizer.text) != detokenizer.stopped
    return "".join(pieces), detokenizer


TEXTS = ["the cat sat on the mat", "naïve café 🙂🙃 ends", "日本語 and the cat", " ", "\n\n  indented"]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_text(text: str) -> None:
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert stream(tokens)[0] == text == TOKENIZER.decode(tokens)


def test_no_space_is_lost() -> None:
    """Some tokenizers ask for a "clean-up" of spaces, which looks across tokens."""
    words = ["do", " n", "'t", " ,", "<unk>"]
    inner = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=4))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=True)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, range(4))) + detokenizer.finish() == "do n't ,"


def test_half_characters_are_held_back_and_shown_at_the_end() -> None:
    tokens = TOKENIZER("a🙂", add_special_tokens=False)["input_ids"]
    detokenizer = Detokenizer(TOKENIZER)
    assert "".join(detokenizer.push(token) for token in tokens[:-1]) == "a"
    assert detokenizer.finish() == TOKENIZER.decode(tokens[:-1])[1:]


def test_random_tokens_add_up_to_the_text() -> None:
    rng = random.Random(0)
    for _ in range(50):
        tokens = [rng.randrange(4, len(TOKENIZER)) for _ in range(30)]
        assert stream(tokens)[0] == TOKENIZER.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("sat",), "the cat "),
        (("on the", "sat"), "the cat "),
        (("mat and",), "the cat sat on the "),
        (("zebra",), "the cat sat on the mat and the"),
        (("the mat and the dog", "cat"), "the "),
        (("e c",), "th"),
        (("t",), ""),
    ],
)
def test_text_ends_before_the_first_stop_string(stop: tuple[str, ...], expected: str) -> None:
    tokens = TOKENIZER("the cat sat on the mat and the", add_special_tokens=False)["input_ids"]
    text, detokenizer = stream(tokens, stop)
    assert text == expected == detokenizer.text
    assert detokenizer.stopped == (expected != "the cat sat on the mat and the")


class Bytes:
    """A tokenizer whose tokens are bytes, and which passes over those that are no text; notes the longest window."""

    longest = 0

    def decode(self, tokens: list[int], **options: bool) -> str:
        self.longest = max(self.longest, len(tokens))
        return bytes(tokens).decode(errors="ignore")


def test_tokens_without_text_do_not_pile_up() -> None:
    tokenizer = Bytes()
    detokenizer, pieces = Detokenizer(tokenizer), []
    for part in ("naïve", "日本", "🙂"):
        for token in [*part.encode(), *[0x80] * 300]:
            pieces.append(detokenizer.push(token))
    assert "".join(pieces) == "naïve日本🙂" == detokenizer.text
    assert tokenizer.longest < 25


class Watched:
    """The tokenizer, and the longest window that was decoded."""

    longest = 0

    def decode(self, tokens: list[int], **options: bool) -> str:
        self.longest = max(self.longest, len(tokens))
        return TOKENIZER.decode(tokens, **options)


def test_bytes_that_are_no_text_do_not_pile_up() -> None:
    rng, marks = random.Random(2), TOKENIZER("🙂é", add_special_tokens=False)["input_ids"]
    assert len(marks) == 6
    for _ in range(20):
        tokens = [rng.choice(marks) for _ in range(300)]
        tokens[100:100] = marks * 3
        detokenizer, pieces = Detokenizer(TOKENIZER), []
        for token in tokens:
            pieces.append(detokenizer.push(token))
        assert "".join(pieces) + detokenizer.finish() == TOKENIZER.decode(tokens)
    detokenizer = Detokenizer(tokenizer := Watched())
    assert len("".join(detokenizer.push(marks[-1]) for _ in range(300))) > 280
    assert tokenizer.longest < 50


def test_a_space_between_prompt_and_text_is_kept() -> None:
    """As with SentencePiece, whose decoder drops the space of the first token it is given."""
    inner = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "▁three": 2}, unk_token="▁one"))
    inner.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    detokenizer = Detokenizer(tokenizer, prompt=(0,))
    assert detokenizer.push(1) + detokenizer.push(2) + detokenizer.finish() == " two three"
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    detokenizer = Detokenizer(tokenizer, prompt=(0,))
    tokens = [*[3] * 50, 1, *[3] * 50, 2]
    assert "".join(detokenizer.push(token) for token in tokens) == " two three"


def test_a_stop_string_before_half_a_character_ends_the_text_at_its_limit_too() -> None:
    class Pieces:
        def decode(self, tokens: list[int], **options: bool) -> str:
            return b"".join([b"", b"a x\xf0"][token] for token in tokens).decode(errors="replace")

    target: Any = SimpleNamespace(longest_run=9, eos_token_ids=(), tokenizer=Pieces(), dtype=torch.float32)
    sequence = RunningSequence(0, Request((0,), max_new_tokens=1, stop=("x",)), target)
    ended = sequence.accept([1], [0], 0, 1).generation
    assert ended is not None and (ended.text, ended.finish_reason) == ("a ", "stop")


@pytest.mark.parametrize(
    ("stop", "written", "tokens", "text"),
    [
        ("<|im_end|>", "yes<|im_end|> no", 2, "yes"),
        ("<|im_end|>\n", "yes<|im_end|> no<|im_end|>\n", 5, "yes no"),
        ("<|im_start|><|im_end|>", "yes<|im_start|><|im_end|>", 3, "yes"),
        ("s<|im_end|>", "yes<|im_end|>", 2, "yes"),  # what was returned is not taken back
        ("<|im_end|>", "yes no", None, "yes no"),
    ],
)
def test_a_stop_string_with_a_special_token_ends_the_text(
    stop: str, written: str, tokens: int | None, text: str
) -> None:
    """Also in the midst of a step, and after a prompt that ends in the token."""
    every = TOKENIZER(written, add_special_tokens=False)["input_ids"]
    prompt = tuple(TOKENIZER("no<|im_end|>", add_special_tokens=False)["input_ids"])
    target: Any = SimpleNamespace(longest_run=99, eos_token_ids=(), tokenizer=TOKENIZER, dtype=torch.float32)
    sequence = RunningSequence(0, Request(prompt, len(every), stop=(stop,)), target)
    event = sequence.accept(every, [0], len(every), len(every))
    ended = event.generation
    assert ended is not None and ended.finish_reason == ("stop" if tokens else "length")
    assert list(ended.tokens) == every[:tokens] and event.text == ended.text == text


def test_without_a_tokenizer_there_is_no_text() -> None:
    detokenizer = Detokenizer(None, ("x",))
    assert detokenizer.push(3) + detokenizer.finish() == ""


def test_a_token_is_named_as_it_reads_amid_others() -> None:
    inner = Tokenizer(models.WordLevel({"▁the": 0, "the": 1, "s": 2, "<0xC3>": 3}, unk_token="s"))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert tokenizer.decode([0]) == "the"
    assert [token_name(tokenizer, token) for token in range(4)] == [" the", "the", "s", "\ufffd"]
