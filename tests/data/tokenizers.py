"""Tiny tokenizers, trained on the spot, and chat templates with the habits of real ones."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = "User Assistant think the cat sat on the mat and the answer is yes no hello world. "

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}A:{%- generation -%}{{ m['content'] }}"
    "{{ eos_token }}{%- endgeneration -%}{% else %}U:{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
STRIPS_THINKING = (  # as Qwen3's: earlier turns lose their thinking, the last one always gets a block for it
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% set answer = m['content'].split('</think>')[-1] %}"
    "{% if loop.last %}<think>{% if '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[0].split('<think>')[-1] }}{% endif %}</think>{% endif %}{{ answer }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_THINKING = (  # as DeepSeek-R1's: the opening of the answer holds a tag that finished answers do not have
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}<A>"
    "{{ m['content'].split('</think>')[-1] }}{{ eos_token }}{% else %}<U>{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<A><think>\n{% endif %}"
)
COUNTS_TURNS = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    + CHATML.removeprefix("{% for m in messages %}")
)


def make_tokenizer(
    template: str | None = None, adds_bos: bool = True, trims: bool = False, adds_eos: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with <s>, </s> and the marks of chat.

    With `trims` a token covers no spaces, and one of spaces alone nothing.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([TEXT] * 4, trainer)
    steps = [processors.ByteLevel(trim_offsets=True)] if trims else []
    if adds_bos:
        whole = "<s> $A </s>" if adds_eos else "<s> $A"
        steps.append(processors.TemplateProcessing(whole, special_tokens=[("<s>", 0), ("</s>", 1)]))
    inner.post_processor = processors.Sequence(steps)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer
