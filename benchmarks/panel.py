"""Make small targets of other families and tokenizers, so that no default is chosen on one target alone.

    python -m benchmarks.panel letters --text train.jsonl --output panel/letters
    python -m benchmarks.panel words --text chats.jsonl --output panel/words

`letters` is a Llama whose tokens are characters, `words` a GPT-NeoX (LayerNorm, biases, parallel residual, rotary in a
quarter of each head, untied lm_head) with 2,048 byte-pair tokens. Both have about a million parameters and learn the
texts of one JSON-lines file with `text` or `messages`, as the embedded target learns, in `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from clover.files import append_to_name
from experiments.recipes.pretrain import pretrain

END = "<|end|>"
CONTEXT = 1024


def main() -> None:
    """Train the tokenizer and the model, and write both."""
    options = _options()
    torch.manual_seed(options.seed)
    texts = list(_texts(options.text))
    tokenizer = _letters(texts) if options.kind == "letters" else _words(texts)
    stream = _stream(tokenizer, texts)
    end = tokenizer.convert_tokens_to_ids(END)
    model = _llama(len(tokenizer), end) if options.kind == "letters" else _neox(len(tokenizer), end)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens, {len(stream):,} of text", file=sys.stderr)
    state = append_to_name(options.output, ".state")
    for moment in pretrain(model, stream, state, options.minutes):
        print(f"{moment.share:.0%}  step {moment.step}  loss {moment.loss:.3f}", file=sys.stderr, flush=True)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    state.unlink()


def _texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield row["text"] if "text" in row else "\n\n".join(m["content"] for m in row["messages"])


def _letters(texts: list[str]) -> PreTrainedTokenizerFast:
    counts: dict[str, int] = {}
    for character in "".join(texts):
        counts[character] = counts.get(character, 0) + 1
    frequent = sorted(counts, key=lambda character: -counts[character])[:126]
    vocabulary = {token: number for number, token in enumerate([END, "<|unknown|>", *frequent])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False
    )


def _words(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def _stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    end = tokenizer.convert_tokens_to_ids(END)
    found = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return torch.tensor([token for ids in found for token in (*ids, end)], dtype=torch.int32)


def _llama(vocab_size: int, end: int) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=5,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=None,
        )
    )


def _neox(vocab_size: int, end: int) -> PreTrainedModel:
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("letters", "words"))
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
