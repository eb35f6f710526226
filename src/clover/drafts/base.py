"""The interface between draft systems and the rest: what training and the engine call.

Shapes: B batch, A committed positions of one call, P frontier nodes, T text, D depths trained, H hidden,
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

DEEPEST = 16  # The deepest tree of a draft that repeats one step, and so could draft without end.
# Each class of a draft system adds itself here by its name.
SYSTEMS: dict[str, type["DraftModel"]] = {}


class DraftModel(PreTrainedModel):
    """Base of all drafts. The target's lm_head and embedding are shared by `bind`, not saved; an own lm_head is.

    Attributes:
        label: name of the system in reports.
        color: its color in figures, "#rrggbb"; None for any that is free.
        training_defaults: how the system is trained where the user does not say otherwise.
        repeats_step: whether all depths, or all after the first, are one step that can be repeated.
        conditions_on_drafted_tokens: False where `step` ignores drafted tokens, so that all nodes of a depth are alike.
        d2t: Long [V], the target's token of each index of the draft's logits, rising; None for the target's whole
            vocabulary. Until `reduce_vocabulary` the first tokens.
        copies_text: whether sessions can copy from the text, as much as `fit_copies` sets.
        usable: whether all weights are finite numbers; where they are not, decoding goes on without the draft.
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
        """Add a new system to `SYSTEMS`, by the `model_type` of its configuration."""
        super().__init_subclass__(**kwargs)
        if (kind := vars(cls).get("config_class")) is not None:
            SYSTEMS[kind.model_type] = cls

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        size = config.draft_vocab_size
        if size is not None:
            check_size(size, config.target_shape.vocab_size)
        self.register_buffer("d2t", None if size is None else torch.arange(size))
        self._lm_head: tuple[nn.Linear, ...] = ()  # In a tuple it is not saved with the draft.
        self._fast: dict[bool, tuple[Any, Any]] = {}  # Per `full_precision`: versions of weights, the copy.

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the constructors and `start_from` set starting values."""

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
        """Return the depths of a tree that the draft can fill: its heads, or more where it repeats one step."""
        heads = self.config.num_heads
        return max(DEEPEST, heads) if self.repeats_step else heads

    @property
    def trained_depths(self) -> int:
        """Return the depths that `forward` trains; 1 for systems that train a single step, as EAGLE-1 does."""
        return self.config.num_heads

    @property
    def session_tokens(self) -> Tensor | None:
        """Return which tokens a session's logits are of, Long [V]; None for the target's whole vocabulary."""
        return self.d2t

    def bind(self, target: TargetWeights) -> Self:
        """Share the target's lm_head and embedding; of the lm_head only the rows of the draft's vocabulary.

        UserError if the draft was trained for another target, or `d2t` does not name tokens of the target.
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
        """Return the target's lm_head, or the rows of it that the draft proposes from; frozen."""
        assert len(self._lm_head) == 1, "bind() the draft to its target first"
        return self._lm_head[0]

    def for_inference(self, full_precision: bool = False) -> Self:
        """Return this draft over the same weights in the form that runs fastest on this machine; made once per weights.

        With `full_precision` it has no int8 weights and rounds none to bfloat16. The output is then the same for every
        number of input rows up to the rounding of products, whose order of sums follows from that number.
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
        """Fit how much sessions copy to held-out predictions; return the copy weights, None to copy nothing.

        Systems that cannot copy do nothing.
        """
        return None

    def copy_nothing(self) -> None:
        """Let sessions copy nothing from the text; systems that cannot copy do nothing."""

    def make_tables(self) -> None:
        """Compute what does not depend on the text, in a copy of the draft that is no longer trained."""

    @torch.no_grad()
    def reduce_vocabulary(self, tokens: Tensor) -> None:
        """Let the draft propose from these tokens only, Long [V], rising; UserError if they are none such.

        An own lm_head keeps its rows, and has the target's for tokens that it did not know.
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
        """Return logits [..., V] of outputs [..., H]: by the target's lm_head, or the draft's of this depth, from 0."""
        return self.target.head.scaled(self.lm_head(outputs))

    @classmethod
    def from_target(cls, target: TargetWeights, **options: Any) -> Self:
        """Return a draft for `target` with starting values, in float32 or the target's wider dtype, to be trained.

        `options` are fields of the system's configuration; UserError if there is no such field, or a value is wrong.
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
        """Return an empty cache for `read`; it has no layers where only the number of committed positions matters."""
        weight = self.target.lm_head_weight
        return KVCache.new((0, 1, 1, 1), batch_size, 1, weight)

    def new_session(self, batch_size: int, capacity: int) -> DraftSession:
        """Return a session for `batch_size` sequences with room for `capacity` positions each; it grows when needed."""
        return DraftSession(self, self.new_cache(batch_size, capacity))

    def read(self, hidden: Tensor, next_tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Run what runs once per verified position; return the states [B, A, H] that the first depth starts from.

        Args:
            hidden: [B, A, W] the target's hidden states of the kind `config.hidden_state` names.
            next_tokens: Long [B, A] the token after each position.
            cache: of `new_cache`, after `begin(A)`; None for whole texts.
        """
        return hidden

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run one depth; return the nodes' states and what goes into the lm_head, both [B, P, H].

        Args:
            depth: from 0.
            states: [B, P, H] of the nodes above; at depth 0 those of `read`.
            tokens: Long [B, P] the newest token of each path; at depth 0 the one that the target has produced.
        """
        raise AssertionError(
            "a draft system defines `step`, unless its `forward` and its session have their own"
        )

    def run(
        self, states: Tensor, tokens: Tensor, cache: KVCache, positions: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return the states [B, N, H] of N new nodes whose layers attend inside the tree; `TreeSession` calls it.

        Args:
            states: [B, N, H] of the nodes above.
            tokens: Long [B, N] the newest token of each node's path.
            cache: of committed pairs and drafted nodes, after `begin(N)`.
            positions: Long [B, N] of the nodes in the text.
            mask: Bool [B, 1, N, S], True where a node may attend; None for plain text.
        """
        raise AssertionError("only drafts that attend inside the tree have a TreeSession")

    def forward(self, hidden: Tensor, tokens: Tensor, depths: int | None = None) -> Tensor:
        """Return the outputs [D, B, T, H] of the first D depths over whole texts, with the texts' own tokens drafted.

        Training runs this; `out[i, :, t]` stands for the target's post-norm state at t + 1 + i, and through
        `train_logits` predicts token t + 2 + i. Values for which the text ends too early are meaningless.

        Args:
            hidden: [B, T, W] the target's hidden states of the kind `config.hidden_state` names.
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
            rows: Long [S] the rows of the lm_head to use; None for all.
        """
        head = self.lm_head
        if rows is not None:
            head = linear_of(head.weight[rows], None if head.bias is None else head.bias[rows])
        return self.target.head.scaled(head(outputs.to(self.target.dtype)))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of lm_heads of the draft itself, each [..., V, H]; none where it uses the target's."""
        return []
