"""What every draft's configuration says: the target it was trained for and the hidden states it reads."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from clover.errors import UserError
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE, TreeShape

HIDDEN_STATES = ("post_norm", "pre_norm")


class DraftConfig(PretrainedConfig):
    """Base of all draft configurations.

    Args:
        target_config: the target's own `config.to_dict()`; the draft builds its decoder layers from it and is bound
            only to a target that agrees with it.
        hidden_state: "post_norm", the target's last hidden states after its final norm (what serving engines hand
            over, and the regression target at once), or "pre_norm", before it (as in the papers).
        tree: rank paths of the static tree the draft works best with; the 25-node tree of Clover-2 if None.
    """

    def __init__(
        self,
        target_config: dict[str, Any] | None = None,
        hidden_state: str = "post_norm",
        tree: list[list[int]] | None = None,
        **kwargs: Any,
    ):
        self.target_config = target_config or {}
        self.hidden_state = hidden_state
        self.tree = tree
        if hidden_state not in HIDDEN_STATES:
            raise UserError(f"hidden_state is {hidden_state!r}; it must be one of {', '.join(HIDDEN_STATES)}")
        super().__init__(**kwargs)

    @property
    def tree_shape(self) -> TreeShape:
        """The tree to use where the user names none."""
        return CLOVER2_TREE if self.tree is None else TreeShape.from_paths(self.tree)

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
