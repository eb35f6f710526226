"""Tokenizer of the embedded target (byte-level BPE, trained on the corpus) and the corpus as one stream of tokens."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from experiments.recipes.corpus import Document

END_OF_TEXT = "<|endoftext|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}"
    "{{ eos_token }}{% endif %}{% endfor %}"
)


def train_tokenizer(
    documents: Sequence[Document], context_length: int, vocabulary: int = 4096
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most 32,768 entries; runs of spaces stay together, as code needs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = _CHAT_TEMPLATE
    return wrapped


def token_stream(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]) -> Tensor:
    """Return all documents one after another, each opened by the end-of-text token: Short [tokens]."""
    texts = tokenizer.backend_tokenizer.encode_batch([d.text for d in documents])
    parts = [torch.tensor([tokenizer.eos_token_id, *text.ids], dtype=torch.int16) for text in texts]
    return torch.cat(parts)
