from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = 256
# Plain turns, so that every byte of the answer is one token of the tiny target.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({**vocabulary, "<end>": END}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", chat_template=chat_template
    )


def save_tiny_target(directory: Path, chat_template: str | None) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=END + 1, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    byte_tokenizer(chat_template).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random byte-level target that can chat, context 256."""
    return save_tiny_target(tmp_path_factory.mktemp("models") / "target", CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def tiny_target_without_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same target without a chat template."""
    return save_tiny_target(tmp_path_factory.mktemp("models") / "target", None)
