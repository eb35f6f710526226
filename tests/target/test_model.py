"""The target model: trees give what their paths alone give, and what `load` says of bad input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from clover.errors import UserError
from clover.target import HIDDEN_STATES, TargetModel
from tests.families import (
    CONTEXT,
    FAMILIES,
    HIDDEN,
    PARENTS,
    VOCAB,
    ancestor_mask,
    prefill,
    run_tree,
    tiny_config,
    tiny_model,
)

EXACT = {"rtol": 1e-6, "atol": 1e-8}  # several families compute their norms in float32 whatever the dtype


def path_of(node: int) -> list[int]:
    return ancestor_mask(PARENTS)[node].nonzero().flatten().tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lengths", [[5], [5, 1, 3]])
def test_tree_logits_at_a_node_are_those_of_its_path_alone(family: str, lengths: list[int]) -> None:
    model = tiny_model(family)
    target = TargetModel(model)
    texts, trees = torch.randint(VOCAB, (len(lengths), 5)), torch.randint(VOCAB, (len(lengths), len(PARENTS)))
    cache = target.new_cache(len(lengths), 6)  # the tree outgrows it
    prefill(target, cache, texts, lengths)
    output = run_tree(target, cache, trees, PARENTS)
    logits = target.logits(output.hidden)
    assert cache.capacity >= 12 and logits.shape == (len(lengths), len(PARENTS), VOCAB)
    assert output.draft_hidden_states is output.hidden
    for row, length in enumerate(lengths):
        alone = [torch.cat([texts[row, :length], trees[row, path_of(node)]]) for node in range(len(PARENTS))]
        padded = torch.nn.utils.rnn.pad_sequence(alone, batch_first=True)
        expected = model(input_ids=padded, use_cache=False).logits
        ends = [len(text) - 1 for text in alone]
        torch.testing.assert_close(logits[row], expected[torch.arange(len(ends)), ends], **EXACT)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", HIDDEN_STATES)
def test_plain_steps_and_whole_texts_agree(family: str, kind: str) -> None:
    target = TargetModel(tiny_model(family))
    tokens = torch.randint(VOCAB, (2, 6))
    whole = target.train_forward(tokens, kind)
    assert whole.draft_hidden_states.shape[-1] == target.hidden_width(kind)
    if kind == "pre_norm":
        torch.testing.assert_close(target.final_norm(whole.draft_hidden_states), whole.hidden, **EXACT)
    cache = target.new_cache(2, 4)
    for step in range(6):
        output = prefill(target, cache, tokens[:, step : step + 1], [1, 1], kind)
        torch.testing.assert_close(output.hidden, whole.hidden[:, step : step + 1], **EXACT)
        torch.testing.assert_close(
            output.draft_hidden_states, whole.draft_hidden_states[:, step : step + 1], **EXACT
        )


def test_a_model_on_another_device_is_refused() -> None:
    with pytest.raises(UserError, match="its lm_head is offloaded"):
        TargetModel(tiny_model("llama").to("meta"))


def test_text_on_top_of_ragged_rows() -> None:
    target = TargetModel(tiny_model("llama"))
    tokens = torch.randint(VOCAB, (2, 8))
    cache = target.new_cache(2, 4)
    prefill(target, cache, tokens[:, :4], [4, 2])
    rows = torch.stack([tokens[0, 4:8], tokens[1, 2:6]])
    hidden = prefill(target, cache, rows, [4, 4]).hidden
    expected = target.train_forward(tokens).hidden
    torch.testing.assert_close(hidden, torch.stack([expected[0, 4:8], expected[1, 2:6]]), **EXACT)


def test_facts() -> None:
    target = TargetModel(tiny_model("granite", torch.float32))
    target.model.generation_config.eos_token_id = [7, 2]
    assert (target.hidden_size, target.vocab_size, target.num_layers) == (HIDDEN, VOCAB, 2)
    assert (target.dtype, target.device.type, target.longest_run) == (torch.float32, "cpu", CONTEXT)
    assert target.eos_token_ids == (7, 2) and target.tokenizer is None
    with pytest.raises(UserError, match="no tokenizer, which texts need; save"):
        target.require_tokenizer()
    assert target.embedding_weight.shape == target.lm_head_weight.shape == (VOCAB, HIDDEN)
    assert target.head.linear.bias is None
    assert not any(weight.requires_grad for weight in target.model.parameters())


def test_nothing_is_left_on_the_model() -> None:
    model = tiny_model("llama")
    target = TargetModel(model)
    target.train_forward(torch.zeros(1, 3, dtype=torch.long))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class HeadPlusOne(LlamaForCausalLM):
    def forward(self, *args: object, **kwargs: object):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + 1
        return output


class BlindToMask(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.register_forward_pre_hook(self.forget_mask, with_kwargs=True)

    @staticmethod
    def forget_mask(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, {**kwargs, "attention_mask": None}


@pytest.mark.parametrize(
    ("model_class", "message"),
    [(HeadPlusOne, "llama.*HeadPlusOne.*lm_head"), (BlindToMask, "llama.*BlindToMask.*token tree")],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_silently_different_model_is_refused(model_class: type, message: str, dtype: torch.dtype) -> None:
    model = model_class._from_config(tiny_model("llama").config, attn_implementation="sdpa", dtype=dtype)
    with pytest.raises(UserError, match=message):
        TargetModel(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_probe_lets_other_dtypes_pass(dtype: torch.dtype) -> None:
    for family in ("llama", "gpt2", "gemma", "granite"):
        TargetModel(tiny_model(family, dtype))


def test_eager_attention_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(tiny_model("llama").config, attn_implementation="eager")
    with pytest.raises(UserError, match="sdpa"):
        TargetModel(model)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    tiny_model("llama", torch.float32).save_pretrained(path)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "target"))


def weights(path: Path) -> Tensor:
    return TargetModel.load(path).lm_head_weight


def test_load(directory: Path) -> None:
    target = TargetModel.load(directory)
    assert target.dtype == torch.float32 and target.tokenizer is None
    assert TargetModel.load(str(directory), dtype="bf16", device="cpu").dtype == torch.bfloat16
    assert TargetModel.load(directory, dtype=torch.float64).dtype == torch.float64
    assert (weights(directory) == tiny_model("llama", torch.float32).lm_head.weight).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8'.*float32"),
        ({"dtype": torch.int64}, "dtype"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"device": "cuda:77"}, "device 'cuda:77'"),
        ({"device": "meta"}, "device 'meta' is not supported; use cpu or cuda"),
        ({"device": "mps"}, "device 'mps' is not supported; use cpu or cuda"),
    ],
)
def test_load_refuses_bad_options(directory: Path, options: dict, message: str) -> None:
    refuse(directory, message, **options)


def test_load_names_what_is_wrong_with_the_files(directory: Path) -> None:
    refuse(directory / "nowhere", "no such directory")
    refuse(directory / "config.json", "name its directory")
    (directory / "tokenizer.json").write_text("{")
    refuse(directory, "tokenizer")
    (directory / "tokenizer.json").unlink()
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    refuse(directory, "is damaged or its download was interrupted")
    file.rename(directory / "pytorch_model.bin")
    refuse(directory, "pytorch_model.bin, a pickle")
    (directory / "pytorch_model.bin").unlink()
    refuse(directory, "no safetensors weights")
    edit(directory, hidden_size="big")
    refuse(directory, "hidden_size")
    edit(directory, hidden_size=HIDDEN, num_attention_heads=0)
    refuse(directory, "cannot be loaded")
    edit(directory, num_attention_heads=4)
    (directory / "generation_config.json").write_text("{")
    edit(directory, hidden_size=HIDDEN)
    refuse(directory, "generation_config.json")
    (directory / "config.json").write_text("{not json")
    refuse(directory, "JSON")
    (directory / "config.json").write_text('{"model_type": "llamaramadingdong"}')
    refuse(directory, "llamaramadingdong")


def test_load_refuses_missing_and_misshapen_weights(directory: Path) -> None:
    edit(directory, num_hidden_layers=3)
    refuse(directory, r"model\.layers\.2.*missing")
    edit(directory, num_hidden_layers=2, intermediate_size=40)
    refuse(directory, "do not have the shapes")


def test_load_names_tokens_that_are_none(directory: Path) -> None:
    file = directory / "generation_config.json"
    for wrong in ([[1]], "</s>", {"a": 1}):
        file.write_text(json.dumps({"eos_token_id": wrong}))
        refuse(directory, r"generation_config: eos_token_id\.0 is .*; it must be a valid integer")
    file.unlink()
    edit(directory, pad_token_id=VOCAB)
    refuse(directory, "cannot be loaded: Padding_idx must be within num_embeddings")


def test_load_does_not_run_code_of_the_model(directory: Path) -> None:
    edit(directory, model_type="custom", auto_map={"AutoConfig": "custom.Config"})
    (directory / "custom.py").write_text("raise SystemExit('it ran')")
    refuse(directory, "trust_remote_code")


def edit(directory: Path, **changes: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refuse(path: Path, message: str, **options: object) -> None:
    with pytest.raises(UserError, match=message) as caught:
        TargetModel.load(path, **options)
    assert "\n" not in str(caught.value)


def test_three_layers_side_by_side() -> None:
    """EAGLE-3's choice: what goes into layer 2, the middle one and the third from the end."""
    config = tiny_config("llama")
    config.num_hidden_layers = 8
    target = TargetModel(tiny_model("llama", config=config))
    tokens = torch.randint(VOCAB, (2, 6))
    states = target.model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[2], states[4], states[5]], dim=-1)
    torch.testing.assert_close(
        target.train_forward(tokens, "low_middle_high").draft_hidden_states, expected, **EXACT
    )
