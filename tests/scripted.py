"""A target that answers as a function says: what a model trained for chats and tools would write, without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from clover.api import Clover, make_engine
from clover.target import Target, TargetOutput, TargetSession
from clover.tree import TokenTree
from tests.data.tokenizers import make_tokenizer

QWEN = (  # as Qwen3's, shortened
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content }}</tool_response>"
    "{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HARMONY = (  # as gpt-oss's, shortened: <|channel|> and the others are special tokens
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}{% if m.thinking and loop.last %}<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|><|start|>assistant{% endif %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SPECIAL = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"]


class ScriptedTarget(Target):
    """A target of 4,096 tokens of context.

    Args:
        template: the chat template.
        answer: returns what is written after a prompt, both as text with special tokens; then the text ends.
    """

    vocab_size, longest_run, eos_token_ids, tokenizer = 0, 4096, (), None  # type: ignore[assignment]

    def __init__(self, template: str, answer: Callable[[str], str]):
        self.tokenizer: Any = make_tokenizer(template)
        self.tokenizer.add_special_tokens({"extra_special_tokens": SPECIAL})
        self.vocab_size, self.eos_token_ids = len(self.tokenizer), (self.tokenizer.eos_token_id,)
        self._answer, self._planned = answer, dict[tuple[int, ...], list[int]]()
        render, asked = self.tokenizer.apply_chat_template, [{"role": "user", "content": "?"}]
        whole = render(asked, tokenize=False, add_generation_prompt=True)
        self._opening = self._encode(whole[len(render(asked, tokenize=False)) :])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def hidden_width(self, hidden_state: str) -> int:
        return 1

    def open(self, rows: int, capacity: int) -> ScriptedSession:
        return ScriptedSession(self, [[] for _ in range(rows)])

    def following(self, text: list[int]) -> int:
        """The token after a text: the end where it does not go on as planned after the opening of an answer."""
        size = len(self._opening)
        for start in range(size, len(text) + 1):
            if text[start - size : start] == self._opening:
                planned, written = self._plan(tuple(text[:start])), text[start:]
                if planned[: len(written)] == written and len(written) < len(planned):
                    return planned[len(written)]
        return self.eos_token_ids[0]

    def _plan(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._planned:
            said = self._answer(self.tokenizer.decode(prompt))
            self._planned[prompt] = [*self._encode(said), *self.eos_token_ids]
        return self._planned[prompt]


class ScriptedSession(TargetSession):
    def __init__(self, target: ScriptedTarget, texts: list[list[int]]):
        self.target, self.texts = target, texts
        self.nodes: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def run(
        self, tokens: Tensor | TokenTree, hidden_state: str = "post_norm", logits: bool = True
    ) -> TargetOutput:
        if isinstance(tokens, TokenTree):
            parents, tokens = tokens.parents.tolist(), tokens.tokens
        else:
            parents = [list(range(-1, tokens.shape[1] - 1))] * len(tokens)
        self.nodes = tokens.tolist()
        hidden = torch.zeros(*tokens.shape, 1)
        if not logits:
            return TargetOutput(hidden)
        scores = torch.zeros(*tokens.shape, self.target.vocab_size)
        for row, nodes in enumerate(self.nodes):
            for node in range(len(nodes)):
                path, at = list[int](), node
                while at >= 0:
                    path.insert(0, nodes[at])
                    at = parents[row][at]
                scores[row, node, self.target.following(self.texts[row] + path)] = 1e4
        return TargetOutput(hidden, scores)

    def keep(self, path: Tensor, counts: Sequence[int]) -> None:
        for text, nodes, row, count in zip(self.texts, self.nodes, path.tolist(), counts):
            text += [nodes[node] for node in row[:count]]

    def commit(self, counts: Sequence[int]) -> None:
        for text, nodes, count in zip(self.texts, self.nodes, counts):
            text += nodes[:count]

    def crop(self, lengths: Sequence[int]) -> None:
        self.texts = [text[:length] for text, length in zip(self.texts, lengths)]

    def drop(self, row: int) -> None:
        self.texts[row] = self.texts[-1]
        self.texts.pop()

    def insert(self, other: Any) -> None:
        self.texts += other.texts

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        others, self.texts = self.texts[rows:], self.texts[:rows]
        yield
        self.texts += others

    def copy_row(self, row: int, length: int) -> ScriptedSession:
        return ScriptedSession(self.target, [self.texts[row][:length]])

    def fill_row(self, row: int, other: Any, length: int) -> None:
        self.texts[row] = other.texts[0][:length]

    def row_bytes(self, length: int) -> int:
        return 8 * length


def scripted(template: str, answer: Callable[[str], str] | str, tree: str = "lookup") -> Clover:
    """A model that answers so, with drafts copied from the text."""
    said = (lambda _: answer) if isinstance(answer, str) else answer
    return Clover(make_engine(ScriptedTarget(template, said), None, tree))  # type: ignore[arg-type]
