"""A GGUF file is a target: the weights, the tokenizer and the stop tokens that are in it, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging

from clover.engine import Engine, Request
from clover.errors import UserError
from clover.target import TargetModel
from clover.target import gguf as gguf_targets
from tests.families import tiny_model

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: LlamaForCausalLM, path: Path, merge: str = '! "') -> None:
    """The model as llama.cpp's converter writes it: rows of queries and keys in another order."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    letters = [*(chr(33 + number) for number in range(config.vocab_size - 1)), '!"']
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(letters)
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([merge])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(*_converted(name, tensor.float(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _converted(name: str, tensor: torch.Tensor, config) -> tuple:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module = name.removesuffix(".weight")
    if module in outside:
        return f"{outside[module]}.weight", tensor.numpy()
    _, _, layer, part = module.split(".", 3)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    if part in heads:
        split = tensor.view(heads[part], 2, -1, tensor.shape[1])
        tensor = split.transpose(1, 2).reshape(tensor.shape)
    return f"blk.{layer}.{_NAMES[part]}.weight", tensor.contiguous().numpy()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny_model("llama").float(), path)
    return path


def test_a_file_and_its_directory_are_the_same_target(file: Path) -> None:
    original = TargetModel(tiny_model("llama").float())
    prompt = (3, 7, 11, 13)
    (expected,) = [
        e.generation.tokens for e in Engine(original).run([Request(prompt, 12, eos=())]) if e.generation
    ]
    for place in (file, file.parent):
        target = TargetModel.load(place, dtype="float32")
        assert target.tokenizer is not None
        assert target.eos_token_ids[:2] == (2, 5)
        (found,) = [
            e.generation.tokens for e in Engine(target).run([Request(prompt, 12, eos=())]) if e.generation
        ]
        assert found == expected


def test_a_configuration_beside_the_file_changes_nothing(file: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert TargetModel.load(tmp_path, dtype="float32").tokenizer is not None


def test_the_bar_of_dequantising_is_hidden_like_others(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "_tqdm_active", False)
    TargetModel.load(str(file))
    assert "de-quantizing" not in capfd.readouterr().err


@pytest.mark.parametrize("order", list(gguf.GGUFEndian))
def test_numbers_of_the_header_are_those_that_gguf_reads(tmp_path: Path, order: gguf.GGUFEndian) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", endianess=order)
    writer.add_array("words", ["a", "bc"])
    writer.add_array("scores", [1.5, 2.5])
    writer.add_array("lists", [["a"], ["b", "c"]])
    writer.add_bool("flag", True)
    writer.add_uint8("small", 7)
    writer.add_int64("large", -(2**40))
    writer.add_float64("wide", 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = gguf_targets.read_numbers(tmp_path / "x.gguf")
    assert found == {"flag": True, "small": 7, "large": -(2**40), "wide": 0.1}


def test_several_files_and_other_files_are_refused(file: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match=r"several GGUF files \(a.gguf, b.gguf\); name one"):
        TargetModel.load(tmp_path)
    (tmp_path / "c.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="not a GGUF file"):
        TargetModel.load(tmp_path / "c.gguf")


@pytest.mark.parametrize("length", [4, 20, 300, 5000])
def test_broken_files_are_refused(file: Path, tmp_path: Path, length: int) -> None:
    (tmp_path / "x.gguf").write_bytes(file.read_bytes()[:length])
    with pytest.raises(UserError, match="x.gguf"):
        TargetModel.load(tmp_path / "x.gguf")


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama").float(), tmp_path / "x.gguf", merge="! !")
    with pytest.raises(UserError, match=r"tokenizer of .*x.gguf cannot be read"):
        TargetModel.load(tmp_path / "x.gguf")


def test_an_architecture_that_transformers_cannot_read_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"x.gguf.*rwkv7"):
        TargetModel.load(tmp_path / "x.gguf")


def test_missing_packages_are_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_targets, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install accelerate gguf"):
        TargetModel.load(file)
