"""What GGUF files leave unsaid, switch off, or have in several places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from clover.errors import UserError
from clover.target import TargetModel
from tests.target.test_gguf import model_of, write_gguf


@pytest.mark.parametrize(("written", "ends"), [("<end_of_turn>", (2, 7)), ("<|im_end|>", (2,))])
def test_the_end_of_a_turn_is_known_by_its_text_where_the_file_does_not_name_it(
    written: str, ends: tuple[int, ...], tmp_path: Path
) -> None:
    """As llama.cpp knows it; else answers of older files go on with the next turn."""
    model = model_of("llama")
    tokens = [*(chr(33 + number) for number in range(model.config.vocab_size - 1)), '!"']
    tokens[7], kinds = written, [gguf.TokenType.NORMAL] * len(tokens)
    kinds[7] = gguf.TokenType.CONTROL

    def add(writer: gguf.GGUFWriter) -> None:
        for name in ("tokens", "token_type", "eot_token_id"):
            del writer.kv_data[0][f"tokenizer.ggml.{name}"]
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}<end_of_turn>{% endfor %}")

    write_gguf(model, tmp_path / "old.gguf", add=add)
    assert TargetModel.load(str(tmp_path / "old.gguf"), dtype="float32").eos_token_ids == ends


@pytest.mark.parametrize(("kind", "ends"), [("CONTROL", (2, 5, 7)), ("NORMAL", (2, 5))])
def test_a_plain_text_ends_where_its_document_ends(kind: str, ends: tuple[int, ...], tmp_path: Path) -> None:
    """As in llama.cpp; else a chat model that completes code goes on with another document."""
    model = model_of("llama")
    tokens = [*(chr(33 + number) for number in range(model.config.vocab_size - 1)), '!"']
    tokens[7], kinds = "<|endoftext|>", [gguf.TokenType.NORMAL] * len(tokens)
    kinds[7] = gguf.TokenType[kind]

    def add(writer: gguf.GGUFWriter) -> None:
        for name in ("tokens", "token_type"):
            del writer.kv_data[0][f"tokenizer.ggml.{name}"]
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)

    write_gguf(model, tmp_path / "plain.gguf", add=add)
    assert TargetModel.load(str(tmp_path / "plain.gguf"), dtype="float32").eos_token_ids == ends


def test_a_scale_that_is_switched_off_and_rounding_that_is_not_said(tmp_path: Path) -> None:
    def off(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(8.0)

    write_gguf(model_of("llama"), tmp_path / "off.gguf", add=off)
    config: Any = TargetModel.load(str(tmp_path / "off.gguf"), dtype="float32").config
    assert config.rope_parameters["rope_type"] == "default"

    def forget(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["llama.attention.layer_norm_rms_epsilon"]

    write_gguf(model_of("llama"), tmp_path / "none.gguf", add=forget)
    with pytest.raises(UserError, match="does not say its llama.attention.layer_norm_rms_epsilon"):
        TargetModel.load(str(tmp_path / "none.gguf"), dtype="float32")


def test_templates_for_tools_come_with_the_file(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(
            [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        )

    write_gguf(model_of("llama"), tmp_path / "two.gguf", add=add)
    tokenizer: Any = TargetModel.load(str(tmp_path / "two.gguf"), dtype="float32").tokenizer
    assert tokenizer.chat_template == {"default": "plain", "tool_use": "tools"}


def test_a_file_with_an_impossible_alignment_is_refused(tmp_path: Path) -> None:
    write_gguf(
        model_of("llama"), tmp_path / "x.gguf", add=lambda writer: writer.add_uint32("general.alignment", 0)
    )
    with pytest.raises(UserError, match="it is damaged"):
        TargetModel.load(str(tmp_path / "x.gguf"), dtype="float32")
