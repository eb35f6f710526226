"""The tokenizer of a GGUF file splits text as the model's own does, or is refused by the name of its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from clover.errors import UserError
from clover.target import TargetModel
from clover.templates import encode_rendered, encode_text
from tests.target.test_gguf import VOCAB, model_of, write_gguf


def tokenizer_of(path: Path, pre: str | None, family: str = "llama") -> Any:
    write_gguf(model_of(family), path / "x.gguf", pre=pre)
    return TargetModel.load(path / "x.gguf").tokenizer


def pieces(tokenizer: Any, text: str) -> list[str]:
    backend = tokenizer.backend_tokenizer
    text = backend.normalizer.normalize_str(text) if backend.normalizer else text
    split = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [backend.decoder.decode([piece]) for piece in split]


_DIGITS = ["\n\n", "1", "2", " a", " b", "'ll", "."]
_RUNS = ["\n\n", "12", " a", " b", "'ll", "."]


@pytest.mark.parametrize(("names", "text", "expected"), [
    # every digit is split off first, so the line breaks before it stay together
    ("smollm starcoder refact command-r", "\n\n12 a b'll.", _DIGITS),
    ("gpt-2 olmo", "\n\n12 a b'll.", ["\n", "\n", "12", " a", " b", "'ll", "."]),
    ("qwen2 stablelm2 deepseek-r1-qwen", "x\n\n12 A'LL", ["x", "\n\n", "1", "2", " A", "'LL"]),
    ("llama-bpe dbrx smaug-bpe", "x\n\n1234 A'LL", ["x", "\n\n", "123", "4", " A", "'LL"]),
    ("gpt-4o", "1234 helloWorld's/\n", ["123", "4", " hello", "World's", "/\n"]),
    ("tekken", "12 helloWorld's", ["1", "2", " hello", "World", "'s"]),
    # Cased letters alone are words, Chinese is split off, and each line break stands alone
    ("deepseek-llm", "ab cd\n\n12你好,x", ["ab", " cd", "\n", "\n", "1", "2", "你好", ",", "x"]),
    ("deepseek-coder", "ab cd\n\n12你,(x", ["ab", " cd", "\n", "\n", "1", "2", "你", ",(", "x"]),
    ("falcon", "a==1234 b", ["a", "==", "123", "4", " b"]),
])  # fmt: skip
def test_text_is_split_by_the_rule_of_the_model(
    names: str, text: str, expected: list[str], tmp_path: Path
) -> None:
    for name in names.split():
        assert pieces(tokenizer_of(tmp_path, name), text) == expected, name


def test_qwen_composes_characters_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    assert pieces(tokenizer_of(tmp_path, "qwen2"), "e\u0301") == ["\xe9"]
    assert pieces(tokenizer_of(tmp_path, "llama-bpe"), "e\u0301") == ["e", "\u0301"]


def test_the_rules_are_those_that_transformers_brings_with_its_tokenizers(tmp_path: Path) -> None:
    text = "\n\n 12345 It'S a\ttest -- caf\xe9 e\u0301 \u4f60\u597d!\r\n\r\n  x=3.14;\n"
    vocabulary = {chr(33 + number): number for number in range(90)}
    for name, kind in (("qwen2", hf.Qwen2Tokenizer), ("command-r", hf.CohereTokenizer)):
        own = kind(vocab=vocabulary, merges=[])
        assert pieces(tokenizer_of(tmp_path, name), text) == pieces(own, text), name


def test_an_unknown_rule_is_refused_and_a_missing_one_is_the_architectures_or_warned_of(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="its rule for splitting text, chatglm-bpe, is not supported"):
        tokenizer_of(tmp_path, "chatglm-bpe")
    assert pieces(tokenizer_of(tmp_path, None, "qwen2"), "12") == ["1", "2"]
    with pytest.warns(UserWarning, match="does not name its rule"):
        assert pieces(tokenizer_of(tmp_path, None), "12") == ["12"]


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(model_of("llama"), tmp_path / "x.gguf", merge="! !")
    with pytest.raises(UserError, match=r"tokenizer of .*x.gguf cannot be read"):
        TargetModel.load(tmp_path / "x.gguf")


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_puts_a_space_before_a_text_where_the_file_says_so(
    family: str, prefix: bool, tmp_path: Path
) -> None:
    def sentencepiece(writer: Any) -> None:
        fields = writer.kv_data[0]
        for name in ("model", "pre", "tokens", "token_type", "merges"):
            fields.pop(f"tokenizer.ggml.{name}", None)
        words = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", *(f"w{n}" for n in range(43))]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(words)
        writer.add_token_scores([0.0] * 3 + [-1.0 - n for n in range(47)])
        writer.add_token_types([2, 3, 3] + [1] * 47)
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(prefix)

    write_gguf(model_of(family), tmp_path / "x.gguf", add=sentencepiece)
    tokenizer: Any = TargetModel.load(tmp_path / "x.gguf").tokenizer
    tokens = tokenizer("ab")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(tokens) == (["\u2581a", "b"] if prefix else ["a", "b"])
    assert tokenizer.decode(tokens) == "ab"
    if not prefix:
        assert tokenizer.decode(tokenizer(" a")["input_ids"]) == " a"


def test_marks_that_are_no_text_of_bytes_are_found(tmp_path: Path) -> None:
    """As those of DeepSeek's files; transformers spelled them by their bytes, and dropped the half of them."""
    marks = ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<|end|>", "  "]

    def with_marks(writer: Any) -> None:
        fields = writer.kv_data[0]
        for name in ("tokens", "token_type", "bos_token_id"):
            fields.pop(f"tokenizer.ggml.{name}")
        writer.add_token_list([*(chr(33 + number) for number in range(VOCAB - 5)), '!"', *marks])
        writer.add_token_types([1] * (VOCAB - 4) + [3, 3, 3, 4])
        writer.add_bos_token_id(VOCAB - 4)
        writer.add_add_bos_token(True)

    write_gguf(model_of("llama"), tmp_path / "x.gguf", pre="deepseek-r1-qwen", add=with_marks)
    tokenizer: Any = TargetModel.load(tmp_path / "x.gguf").tokenizer
    text, tokens = (
        "<｜begin▁of▁sentence｜><｜User｜>A  B<|end|>",
        [VOCAB - 4, VOCAB - 3, 32, VOCAB - 1, 33, VOCAB - 2],
    )
    assert encode_rendered(tokenizer, text) == tokens
    assert encode_text(tokenizer, text) == tokens
    assert encode_text(tokenizer, "A") == [VOCAB - 4, 32]
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "A  B"


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False)])
def test_pieces_that_are_tokens_are_taken_whole_and_bos_comes_first_where_the_rule_says_so(
    pre: str, whole: bool, tmp_path: Path
) -> None:
    def add(writer: Any) -> None:
        writer.kv_data[0].pop("tokenizer.ggml.tokens")
        writer.add_token_list([*(chr(33 + number) for number in range(VOCAB - 2)), "ABCD", '!"'])

    for says in (None, False):
        write_gguf(
            model_of("llama"),
            tmp_path / "x.gguf",
            pre=pre,
            add=lambda writer, says=says: (add(writer), says is None or writer.add_add_bos_token(says)),
        )
        tokenizer = TargetModel.load(tmp_path / "x.gguf").tokenizer
        words = [VOCAB - 2] if whole else [32, 33, 34, 35]
        assert encode_text(tokenizer, "ABCD") == [1] * (whole and says is None) + words
