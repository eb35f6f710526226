"""The interface of draft systems, which training and the engine call.

Shapes: B batch, A committed positions of one call, P frontier nodes, T text, D trained depths, H hidden,
W width of the hidden states that are read, V vocabulary.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import Self

from clover.cache import KVCache
from clover.cpu import shared_copy, speed_up, versions
from clover.cpu.int8 import int8_head
from clover.cpu.linear import linear_of
from clover.drafts.config import DraftConfig, check_draft_options, check_names, check_target
from clover.drafts.copies import Guesses
from clover.drafts.layers import float32_by_default
from clover.drafts.session import DraftSession, shifted
from clover.drafts.training import TrainingDefaults
from clover.drafts.vocabulary import check_map, check_size
from clover.target import TargetWeights

DEEPEST = 16  # the deepest tree of a draft that repeats one step, which has no limit of its own
# Each class of a draft system adds itself here under its name.
SYSTEMS: dict[str, type["DraftModel"]] = {}


class DraftModel(PreTrainedModel):
    """The base of all drafts. `bind` shares the target's lm_head and embedding, unsaved; an own lm_head is saved.

    Attributes:
        label: name of the system in reports.
        color: its color in figures, "#rrggbb"; None for any free color.
        training_defaults: the default settings for training the system.
        repeats_step: whether all depths, or all after the first, repeat one step.
        conditions_on_drafted_tokens: False if `step` ignores drafted tokens; then all nodes at a depth are equal.
        d2t: Long [V], the target's token of each index of the draft's logits, in rising order; None for the target's
            whole vocabulary. Before `reduce_vocabulary` they are the first tokens.
        copies_text: whether sessions can copy from the text, with the weights that `fit_copies` sets.
        usable: whether all weights are finite; if not, decoding runs without the draft.
    """

    config: DraftConfig
    d2t: Tensor | None
    usable = True
    config_class = DraftConfig
    base_model_prefix = ""
    _no_split_modules = None
    _target: TargetWeights | None = None
    label = "draft"
    color: str | None = None
    training_defaults = TrainingDefaults()
    repeats_step = False
    conditions_on_drafted_tokens = True
    copies_text = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add a new system to `SYSTEMS`, under the `model_type` of its configuration."""
        super().__init_subclass__(**kwargs)
        if (kind := vars(cls).get("config_class")) is not None:
            SYSTEMS[kind.model_type] = cls

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        size = config.draft_vocab_size
        if size is not None:
            check_size(size, config.target_shape.vocab_size)
        self.register_buffer("d2t", None if size is None else torch.arange(size))
        self._lm_head: tuple[nn.Linear, ...] = ()  # in a tuple, so that it is not saved with the draft
        self._fast: dict[bool, tuple[Any, Any]] = {}  # by `full_precision`: weight versions, the copy

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing, because the constructors and `start_from` set the starting values."""

    @property
    def target(self) -> TargetWeights:
        """Return the target that this draft is bound to."""
        assert self._target is not None, "bind() the draft to its target first"
        return self._target

    def is_bound_to(self, target: TargetWeights) -> bool:
        """Return whether the last call of `bind` was for this target."""
        return self._target is target

    @property
    def max_depth(self) -> int:
        """Return the depth of the deepest tree: the number of heads, or more if the draft repeats one step."""
        heads = self.config.num_heads
        return max(DEEPEST, heads) if self.repeats_step else heads

    @property
    def trained_depths(self) -> int:
        """Return how many depths `forward` trains; 1 for systems that train a single step, such as EAGLE-1."""
        return self.config.num_heads

    @property
    def session_tokens(self) -> Tensor | None:
        """Return the tokens that a session's logits belong to, Long [V]; None for the target's whole vocabulary."""
        return self.d2t

    def bind(self, target: TargetWeights) -> Self:
        """Share the target's embedding and lm_head; from the lm_head only the rows of the draft's vocabulary.

        UserError if the draft was trained for another target, or `d2t` is not a list of the target's tokens.
        """
        check_target(self.config.target_config or {}, target)
        linear = target.head.linear
        if self.d2t is not None:
            check_map(self.d2t, target.vocab_size)
            linear = linear_of(
                linear.weight[self.d2t], None if linear.bias is None else linear.bias[self.d2t]
            )
        self._target, self._lm_head, self._fast = target, (linear,), {}
        return self

    @property
    def lm_head(self) -> nn.Linear:
        """Return the target's frozen lm_head, or only the rows of the draft's vocabulary."""
        assert len(self._lm_head) == 1, "bind() the draft to its target first"
        return self._lm_head[0]

    def for_inference(self, full_precision: bool = False) -> Self:
        """Return the form of this draft that runs fastest on this machine; a copy is kept until the weights change.

        With `full_precision`, weights are not rounded to int8 or bfloat16. Then the output depends on the number of
        input rows only by the rounding of products, because that number sets the order of their sums.
        """
        present = versions(self.parameters())
        if full_precision not in self._fast or self._fast[full_precision][0] != present:
            self._fast[full_precision] = (present, self._made_fast(full_precision))
        return self._fast[full_precision][1]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _made_fast(self, full_precision: bool) -> Self:
        draft = shared_copy(self, [self.config, self._target, self._fast, *self._lm_head]).eval()
        draft.make_tables()
        speed_up(draft, int8=not full_precision)
        if not full_precision:
            draft._lm_head = (int8_head(self.lm_head),)
        return draft

    def fit_copies(self, guesses: Guesses) -> list[float] | None:
        """Fit the copy weights of sessions to held-out predictions, and return them; None to copy nothing.

        Systems that cannot copy do nothing.
        """
        return None

    def copy_nothing(self) -> None:
        """Make sessions copy nothing from the text; systems that cannot copy do nothing."""

    def make_tables(self) -> None:
        """Precompute values that do not depend on the text. The engine calls this for a copy that is not trained."""

    @torch.no_grad()
    def reduce_vocabulary(self, tokens: Tensor) -> None:
        """Let the draft propose only these tokens, Long [V], in rising order; UserError if they are invalid.

        A draft's own lm_head keeps its rows; tokens that are new to it get the target's rows.
        """
        target, known = self.target, self.d2t
        check_map(tokens, target.vocab_size)
        for weight in self.head_parameters:
            whole = target.lm_head_weight.to(weight.dtype).expand(*weight.shape[:-2], -1, -1)
            whole = weight if known is None else whole.index_copy(-2, known, weight)
            weight.data = whole[..., tokens, :].contiguous()
        self.config.draft_vocab_size = len(tokens)
        self.d2t = tokens.to(target.device)
        self.bind(target)

    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        """Return logits [..., V] of outputs [..., H], by the target's lm_head, or the draft's at this depth, from 0."""
        return self.target.head.scaled(self.lm_head(outputs))

    @classmethod
    def from_target(cls, target: TargetWeights, **options: Any) -> Self:
        """Return an untrained draft for `target` with starting values, in float32 or the target's wider dtype.

        `options` are fields of the system's configuration; UserError if a field does not exist, or a value is invalid.
        """
        kind = cast(Any, cls.config_class)
        check_names(kind, options)
        check_draft_options(kind, options, kind.model_type)
        config = kind(target_config=target.described_config(), **options)
        with float32_by_default():
            draft: Any = cls(config)
        draft.to(device=target.device, dtype=torch.promote_types(target.dtype, torch.float32))
        draft.start_from(target)
        return draft.bind(target)

    def start_from(self, target: TargetWeights) -> None:
        """Set the starting values that depend on the target's weights."""

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Return an empty cache for `read`. It has no layers if only the number of committed positions matters."""
        weight = self.target.lm_head_weight
        return KVCache.new((0, 1, 1, 1), batch_size, 1, weight)

    def new_session(self, batch_size: int, capacity: int) -> DraftSession:
        """Return a session for `batch_size` sequences with room for `capacity` positions each; it grows when needed."""
        return DraftSession(self, self.new_cache(batch_size, capacity))

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Run the part that runs once per verified position; return the states [B, A, H] for the first depth.

        Args:
            hidden: [B, A, W] the target's hidden states, of the kind `config.hidden_state`.
            next_tokens: Long [B, A] the token after each position.
            cache: of `new_cache`, after `begin(A)`; None for whole texts.
        """
        return hidden

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run one depth; return the nodes' states and the input of the lm_head, both [B, P, H].

        Args:
            depth: from 0.
            states: [B, P, H] of the parents; at depth 0 those of `read`.
            tokens: Long [B, P] the newest token of each path; at depth 0 the token from the target.
        """
        raise AssertionError(
            "a draft system defines `step`, unless its `forward` and its session have their own"
        )

    def run(
        self, states: Tensor, tokens: Tensor, cache: KVCache, positions: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return the states [B, N, H] of N new nodes, in systems that attend inside the tree; `TreeSession` calls it.

        Args:
            states: [B, N, H] of the parents.
            tokens: Long [B, N] the newest token of each node's path.
            cache: of committed pairs and drafted nodes, after `begin(N)`.
            positions: Long [B, N] of the nodes in the text.
            mask: Bool [B, 1, N, S], True where a node may attend; None for plain text.
        """
        raise AssertionError("only drafts that attend inside the tree have a TreeSession")

    def forward(self, hidden: Tensor, tokens: Tensor, depths: int | None = None) -> Tensor:
        """Return the outputs [D, B, T, H] of the first D depths over whole texts, forced with the texts' own tokens.

        Training calls this. `out[i, :, t]` predicts the target's post-norm state at t + 1 + i and, through
        `train_logits`, token t + 2 + i. Values beyond the end of a text are meaningless.

        Args:
            hidden: [B, T, W] the target's hidden states, of the kind `config.hidden_state`.
            tokens: Long [B, T] the texts, padded on the right.
            depths: D; None for `trained_depths`.
        """
        states, outputs = self.read(hidden, shifted(tokens, 1)), []
        for depth in range(depths or self.trained_depths):
            states, output = self.step(depth, states, shifted(tokens, 1 + depth))
            outputs.append(output)
        return torch.stack(outputs)

    def train_logits(self, outputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits [..., D, S] of outputs [..., D, H] of the first D depths, for training.

        Args:
            rows: Long [S] the rows of the lm_head to compute; None for all.
        """
        head = self.lm_head
        if rows is not None:
            head = linear_of(head.weight[rows], None if head.bias is None else head.bias[rows])
        return self.target.head.scaled(head(outputs.to(self.target.dtype)))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the draft's own lm_heads, each [..., V, H]; none if it uses the target's."""
        return []
