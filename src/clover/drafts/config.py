"""What every draft's configuration says: the target it was trained for and the hidden states it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from clover.errors import UserError
from clover.target import HIDDEN_STATES, TargetModel
from clover.tree import CLOVER2_TREE, TreeShape


@dataclass(frozen=True)
class LossConfig:
    """Weights of the training loss, see `clover.losses`.

    Args:
        distillation_weight: of the soft cross-entropy against the target's distribution.
        regression_weight: of the relative SmoothL1 between the draft's outputs and the target's hidden states.
        label_weight: of the cross-entropy against the token that stands in the text.
        decay: weight of each head relative to the one before.
        likely_tokens_only: leave out positions where a token the head is forced with is not one the target might
            have emitted (its top 8 within a nucleus of 0.8); they still count in the mean, as zero.
        noise: half-width of uniform noise added to the hidden states the draft reads, relative to the standard
            deviation of the target's states after the final norm.
    """

    distillation_weight: float = 1.0
    regression_weight: float = 0.0
    label_weight: float = 0.0
    decay: float = 0.7
    likely_tokens_only: bool = False
    noise: float = 0.0


class DraftConfig(PretrainedConfig):
    """Base of all draft configurations.

    Args:
        target_config: the target's own `config.to_dict()`; the draft builds its decoder layers from it and is bound
            only to a target that agrees with it.
        hidden_state: "post_norm", the target's last hidden states after its final norm (what serving engines hand
            over, and the regression target at once), "pre_norm", before it (as in Clover's papers), or
            "low_middle_high", those of three layers side by side (as in EAGLE-3).
        tree: rank paths of the static tree the draft works best with; the 25-node tree of Clover-2 if None.
        draft_vocab_size: how many of the target's tokens the draft proposes from; all if None. Training chooses the
            most frequent ones of its texts.
    """

    num_heads = 5  # depths that are trained, and of its own tree; systems have their own defaults

    def __init__(
        self,
        target_config: dict[str, Any] | None = None,
        hidden_state: str = "post_norm",
        tree: list[list[int]] | None = None,
        draft_vocab_size: int | None = None,
        **kwargs: Any,
    ):
        self.target_config = target_config or {}
        self.hidden_state = hidden_state
        self.tree = tree
        self.draft_vocab_size = draft_vocab_size
        if hidden_state not in HIDDEN_STATES:
            raise UserError(f"hidden_state is {hidden_state!r}; it must be one of {', '.join(HIDDEN_STATES)}")
        super().__init__(**kwargs)

    @property
    def tree_shape(self) -> TreeShape:
        """The tree to use where the user names none, no deeper than there are heads."""
        return CLOVER2_TREE.cut(self.num_heads) if self.tree is None else TreeShape.from_paths(self.tree)

    @property
    def target_shape(self) -> PretrainedConfig:
        """The target's configuration as an object of its own class, which knows every family's names for sizes."""
        return AutoConfig.for_model(**self.target_config)

    def check_target(self, target: TargetModel) -> None:
        """Raise UserError naming the first field in which `target` is not the model this draft was trained for."""
        trained, given = self.target_shape, target.config
        for field in ("model_type", "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"):
            expected, found = getattr(trained, field, None), getattr(given, field, None)
            if expected != found:
                raise UserError(
                    f"this draft does not fit the target: it was trained for {field} = {expected!r}, the target has "
                    f"{found!r}; give the draft's own target or train a draft for this one"
                )
