"""What a user names as a target: what it is, and what to do where it is none."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import pytest
import torch
import transformers as hf

import clover
from clover import assets
from clover.errors import UserError
from clover.target import TargetModel, loading, source
from tests.families import tiny_model
from tests.target.test_gguf import model_of, write_gguf
from tests.tiny import save_tiny_pair

_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(model_of("llama"), path)
    return path


def refused(path: Path, match: str) -> None:
    with pytest.raises(UserError, match=match):
        TargetModel.load(path)


def _written(path: Path, *fields: tuple[str, str], tensors: bool = True, architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields:
        writer.add_string(name, value)
    if tensors:
        writer.add_tensor("blk.0.attn_q.weight.lora_a", torch.zeros(4, 64).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "match"), [
    ("adapter", "it is an adapter"), ("imatrix", "it is an importance matrix"),
    ("mmproj", "image or audio part"), ("vocab", "it is a vocabulary"), ("other", "of the type other"),
])  # fmt: skip
def test_gguf_files_that_are_no_models_are_named(kind: str, match: str, tmp_path: Path) -> None:
    refused(_written(tmp_path / "x.gguf", ("general.type", kind)), match)


def test_a_gguf_file_without_sizes_tensors_or_a_known_architecture_is_refused(tmp_path: Path) -> None:
    refused(_written(tmp_path / "a.gguf"), r"does not say its llama\.context_length")
    refused(_written(tmp_path / "b.gguf", tensors=False), "it has no tensors")
    refused(_written(tmp_path / "c.gguf", architecture="rwkv7"), r"c\.gguf.*rwkv7")


def test_parts_of_a_gguf_file_say_how_to_merge_them(tmp_path: Path) -> None:
    def split(writer: gguf.GGUFWriter) -> None:
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", 2)

    for part in (1, 2):
        write_gguf(model_of("llama"), tmp_path / f"m-{part:05}-of-00002.gguf", add=split)
    for named in (tmp_path, tmp_path / "m-00001-of-00002.gguf"):
        refused(named, "part 1 of 2; merge the parts: llama-gguf-split --merge")


@pytest.mark.parametrize("length", [4, 20, 300, 3000, -1])
def test_gguf_files_that_broke_off_are_refused(file: Path, tmp_path: Path, length: int) -> None:
    (tmp_path / "x.gguf").write_bytes(file.read_bytes()[:length])
    refused(tmp_path / "x.gguf", r"x\.gguf: it .*download was interrupted")


def test_a_gguf_file_of_another_version_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<I", 9) + file.read_bytes()[8:])
    refused(tmp_path / "x.gguf", "version 9 of GGUF")
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack(">I", 3) + file.read_bytes()[8:])
    refused(tmp_path / "x.gguf", "GGUF for big-endian machines is not read")


def test_arrays_of_arrays_without_end_are_damage(tmp_path: Path) -> None:
    nested = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + nested)
    refused(tmp_path / "x.gguf", "it is damaged")


@pytest.mark.parametrize("name", ["model-blob", "sha256-1234"])
def test_a_gguf_file_is_known_by_its_first_bytes(file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(file.read_bytes())
    for place in (tmp_path / name, tmp_path):
        assert source.is_gguf(str(place))
        assert TargetModel.load(place, dtype="float32").name == "llama"


def test_several_files_and_other_files_are_refused(file: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(file.read_bytes())
    refused(tmp_path, r"several GGUF files \(a.gguf, b.gguf\); name one")
    (tmp_path / "c.gguf").write_bytes(b"PK\x03\x04")
    refused(tmp_path / "c.gguf", "not a GGUF file")
    refused(tmp_path / "d.gguf", "no such file")


def test_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    tiny_model("llama", torch.float32).save_pretrained(tmp_path / "m")
    for name in ("model.safetensors", "config.json"):
        place = tmp_path / "m" / name
        content = place.read_bytes()
        place.write_text(_POINTER)
        refused(tmp_path / "m", rf"m/{name} is a pointer of Git LFS.*git lfs pull")
        place.write_bytes(content)
    (tmp_path / "x.gguf").write_text(_POINTER)
    refused(tmp_path / "x.gguf", r"x\.gguf is a pointer of Git LFS")


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ],
)
def test_files_with_a_byte_order_mark_are_named(tmp_path: Path, name: str, mark: str) -> None:
    """Editors on Windows write it; transformers passes over a generation_config.json for it."""
    place, _ = save_tiny_pair(tmp_path)
    TargetModel.load(place, dtype="float32")
    (place / name).write_bytes((place / name).read_text(encoding="utf-8").encode(mark))
    with pytest.raises(UserError, match=f"{name} begins with a byte order mark; save it as UTF-8"):
        TargetModel.load(place, dtype="float32")


def test_safetensors_that_broke_off_are_named(tmp_path: Path) -> None:
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:-100], content[:20], b"", b"<!DOCTYPE html><html>" * 20):
        weights.write_bytes(broken)
        refused(tmp_path, r"model\.safetensors is damaged or its download was interrupted; get it again")


def test_missing_parts_of_the_weights_are_named(tmp_path: Path) -> None:
    tiny_model("llama", torch.float32).save_pretrained(tmp_path, max_shard_size="20KB")
    index, (first, *_, last) = tmp_path / "model.safetensors.index.json", sorted(tmp_path.glob("model-*"))
    assert TargetModel.load(tmp_path).name == "llama"
    (tmp_path / "consolidated.safetensors.index.json").write_text('{"weight_map": {"a": "not-here-1-of-2"}}')
    assert TargetModel.load(tmp_path).name == "llama"
    last.rename(tmp_path / "kept")
    refused(tmp_path, rf"1 of \d+ files of its weights are missing, the first {last.name}")
    (tmp_path / "kept").rename(last)
    content = index.read_text()
    for broken in ("{}", '{"weight_map": {"a": 5}}'):
        index.write_text(broken)
        refused(tmp_path, r"index\.json is damaged: it has no weight_map")
    index.write_text(content[:50])
    refused(tmp_path, r"index\.json")
    index.unlink()
    refused(tmp_path, rf"model\.safetensors\.index\.json is missing, which lists the tensors of {first.name}")


def test_weights_that_the_configuration_does_not_describe_are_named(tmp_path: Path) -> None:
    model = tiny_model("llama", torch.float32)
    model.save_pretrained(tmp_path)
    file, weights = tmp_path / "config.json", model.state_dict()
    config = file.read_text()
    layers = model.config.num_hidden_layers
    file.write_text(config.replace(f'"num_hidden_layers": {layers}', f'"num_hidden_layers": {layers - 1}'))
    refused(
        tmp_path,
        rf"config\.json does not describe model\.layers\.{layers - 1}\..* which its files have \(9 such",
    )
    file.write_text(config)
    for name, known in (("model.layers.0.self_attn.q_proj.bias", False), ("v_head.summary.weight", True)):
        model.save_pretrained(tmp_path, state_dict=weights | {name: torch.ones(8)})
        if known:
            assert TargetModel.load(tmp_path).name == "llama"
        else:
            refused(tmp_path, r"does not describe model\.layers\.0\.self_attn\.q_proj\.bias")


def test_a_download_that_broke_off_and_a_draft_are_named(tmp_path: Path) -> None:
    tiny_model("llama", torch.float32).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.safetensors.incomplete")
    refused(tmp_path, "has no complete file of weights: its download was interrupted")
    refused(assets.DRAFTS["recall"], "is a draft, not a target")


def test_an_adapter_is_named_with_its_model(tmp_path: Path) -> None:
    about = {"base_model_name_or_path": "some/base", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(about))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refused(tmp_path, r"is an adapter for some/base.*merge")


def test_weights_that_are_no_numbers_and_float16_that_is_too_narrow_are_named(tmp_path: Path) -> None:
    model = tiny_model("llama", torch.float32)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 1e7
    model.save_pretrained(tmp_path)
    assert TargetModel.load(tmp_path, dtype="float32").name == "llama"
    with pytest.raises(UserError, match="float16.*bfloat16"):
        TargetModel.load(tmp_path, dtype="float16")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[:] = float("nan")
    with pytest.raises(UserError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        TargetModel(model)


def test_one_infinite_value_in_the_lm_head_is_named() -> None:
    model = tiny_model("llama", torch.float32)
    with torch.no_grad():
        model.lm_head.weight[9, 2], model.lm_head.weight[10, 2] = float("inf"), -float("inf")
    with pytest.raises(UserError, match=r"has infinite values; the file is damaged"):
        TargetModel(model)


def test_tokens_that_the_lm_head_excludes_are_no_damage() -> None:
    model = tiny_model("llama", torch.float32)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
    with torch.no_grad():
        model.lm_head.bias[40:] = -float("inf")
    target = TargetModel(model)
    result = clover.load(target, tree="lookup").generate([5, 6, 7], max_new_tokens=30, temperature=1.0)
    assert max(result.tokens) < 40


def test_missing_packages_are_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gguf"):
        TargetModel.load(file)


def test_only_a_model_on_the_hub_without_tokenizer_files_has_no_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit, hub = "0" * 40, tmp_path / "models--owner--name"
    for folder in ("refs", f"snapshots/{commit}", f".no_exist/{commit}"):
        (hub / folder).mkdir(parents=True)
    (hub / "refs/main").write_text(commit)
    (hub / "snapshots" / commit / "config.json").write_text('{"model_type": "llama"}')
    model = source.Source("owner/name", "owner/name")

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is broken")

    with monkeypatch.context() as patched:
        patched.setattr(hf.AutoTokenizer, "from_pretrained", fail)
        with pytest.raises(
            UserError, match="^the tokenizer of owner/name cannot be read: the disk is broken$"
        ):
            loading.load_tokenizer(model, trust_remote_code=False)
    for name in loading._TOKENIZER_FILES:
        (hub / ".no_exist" / commit / name).touch()
    assert loading.load_tokenizer(model, trust_remote_code=False) is None
