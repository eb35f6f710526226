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
        target: that is trained.
        files: of the corpus; None for all.
        pretrain_minutes, pretrain_tokens: budget of its training, and tokens per step.
        texts, text_tokens: that it writes, and their length at most.
        prompt_tokens: of each text that are given.
        systems: that are trained and compared.
        draft_steps, draft_tokens: steps of every draft, and tokens per step.
        batch_sizes, temperatures, prompts, new_tokens, rounds, trees: of the comparison.
        shapes: whose steps are timed, with random weights.
        most_layers: of a shape; None for as many as fit.
        draft_vocabularies: of the drafts that are timed; None for the whole one.
        context, steps: tokens before the steps that are timed, and how many.
    """

    target: Shape
    files: int | None
    pretrain_minutes: float
    pretrain_tokens: int
    texts: int
    text_tokens: int
    prompt_tokens: int
    systems: tuple[str, ...]
    draft_steps: int
    draft_tokens: int
    batch_sizes: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: int
    new_tokens: int
    rounds: int
    trees: tuple[str, ...]
    shapes: tuple[Shape, ...]
    most_layers: int | None
    draft_vocabularies: tuple[int | None, ...]
    context: int
    steps: int


SYSTEMS = ("clover2", "clover1", "medusa", "eagle", "eagle3", "hydra")

FULL = Sizes(
    target=Shape("trained", 16, 1024, 2816, 16, 8, 16384, tied=True),  # 204 M
    files=None,
    pretrain_minutes=24.0,
    pretrain_tokens=65536,
    texts=8192,
    text_tokens=256,
    prompt_tokens=48,
    systems=SYSTEMS,
    draft_steps=1500,
    draft_tokens=16384,
    batch_sizes=(1, 2, 4, 8, 16, 32, 64),
    temperatures=(0.0, 1.0),
    prompts=64,
    new_tokens=128,
    rounds=5,
    trees=("eagle2:25", "budget:4"),
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
    target=Shape("trained", 2, 64, 160, 4, 2, 1024, tied=True),
    files=120,
    pretrain_minutes=0.1,
    pretrain_tokens=1024,
    texts=24,
    text_tokens=48,
    prompt_tokens=12,
    systems=("clover2", "medusa"),
    draft_steps=6,
    draft_tokens=256,
    batch_sizes=(1, 4),
    temperatures=(0.0,),
    prompts=4,
    new_tokens=12,
    rounds=2,
    trees=("budget:4",),
    shapes=(
        Shape("small", 2, 64, 160, 4, 2, 2048, tied=True),
        Shape("deep", 8, 64, 160, 4, 2, 2048),
    ),
    most_layers=4,
    draft_vocabularies=(None, 512),
    context=64,
    steps=8,
)
