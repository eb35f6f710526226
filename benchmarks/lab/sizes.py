"""How large everything is: for a GPU, and shrunk for a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama.

    Args:
        layers, hidden, inner, heads, kv_heads, vocabulary: its sizes.
        tied: whether the lm_head is the embedding table.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False

    def config(self, layers: int, context: int, end_of_text: int | None = None) -> LlamaConfig:
        """With so many layers and positions."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=context,
            tie_word_embeddings=self.tied,
            bos_token_id=end_of_text,
            eos_token_id=end_of_text,
            pad_token_id=None,
        )

    @property
    def layer_parameters(self) -> int:
        """Numbers of one layer."""
        attention = 2 * self.hidden**2 + 2 * self.hidden**2 * self.kv_heads // self.heads
        return attention + 3 * self.hidden * self.inner + 2 * self.hidden

    @property
    def head_parameters(self) -> int:
        """Numbers of embedding table, lm_head and final norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden


@dataclass(frozen=True)
class Sizes:
    """All that can be chosen.

    Args:
        shapes: whose steps are timed, with random weights.
        most_layers: of a shape; None for as many as fit.
        draft_vocabularies: of the drafts that are timed; None for the whole one.
        context, steps: tokens before the steps that are timed, and how many.
    """

    shapes: tuple[Shape, ...]
    most_layers: int | None
    draft_vocabularies: tuple[int | None, ...]
    context: int
    steps: int


FULL = Sizes(
    shapes=(
        Shape("1B", 16, 2048, 8192, 32, 8, 128256, tied=True),
        Shape("8B", 32, 4096, 14336, 32, 8, 128256),
        Shape("70B", 80, 8192, 28672, 64, 8, 128256),
    ),
    most_layers=None,
    draft_vocabularies=(None, 32768),
    context=512,
    steps=64,
)

SMALL = Sizes(
    shapes=(
        Shape("small", 2, 64, 160, 4, 2, 2048, tied=True),
        Shape("deep", 8, 64, 160, 4, 2, 2048),
    ),
    most_layers=4,
    draft_vocabularies=(None, 512),
    context=64,
    steps=8,
)
