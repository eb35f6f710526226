"""The configuration that all drafts share, and its checks, which run before anything is built from it."""

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from inspect import get_annotations
from typing import Annotated, Any, Literal

from pydantic import Field, create_model
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from clover.errors import UserError
from clover.target import TargetWeights, norms_fingerprint, tensors_fingerprint, tokens_fingerprint
from clover.tree import CLOVER2_TREE, TreeShape
from clover.validation import validated

Count = Annotated[int, Field(ge=1, le=64)]
Paths = Annotated[list[list[int]], Field(max_length=1024)]
Scale = Annotated[float, Field(gt=0, lt=1e6)]
OneLayer = Literal["post_norm", "pre_norm"]  # These hidden states have width H.
Start = Literal["fresh", "last_layer"]
_DType = Literal["float64", "float32", "bfloat16", "float16"]
_TARGET_FIELDS = ("model_type", "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")


class DraftConfig(PretrainedConfig):
    """The base of all draft configurations. Annotated fields are options, which `check_draft_options` checks.

    Attributes:
        num_heads: number of trained depths, and depth of the draft's own tree.
        target_config: the target's `config.to_dict()`, from which decoder layers are built; `bind` checks that a target
            agrees with it.
        hidden_state: "post_norm", the target's states after its final norm; "pre_norm", before it (as in Clover's
            papers); or "low_middle_high", the states of three layers, concatenated (as in EAGLE-3).
        tree: the best static tree for the draft, as at most 1,024 rank paths; None for the 25-node tree of Clover-2.
        target_weights: a hash of the target's weights in training (`target.tensors_fingerprint`), if known.
        target_int8: whether the target ran with int8 weights in training.
        target_name: the name of the target in training; released drafts have it.
        target_norms, target_tokens: hashes of that target's norms (`target.norms_fingerprint`) and of its tokenizer
            (`target.tokens_fingerprint`), which identify its other quantizations and its fine-tunes.
        draft_vocab_size: how many of the target's tokens the draft proposes from, the most frequent ones; all if None.
    """

    num_heads: Count = 5
    target_config: dict[str, Any] | None = None
    hidden_state: Any = "post_norm"  # each system narrows this to the kinds that it can read
    tree: Paths | None = None
    target_weights: str | None = None
    target_int8: bool = False
    target_name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w .+-]*$")] | None = None
    target_norms: str | None = None
    target_tokens: str | None = None
    draft_vocab_size: int | None = None

    def __init_subclass__(cls, **kwargs: Any):
        # because transformers may generate `__init__` itself
        cls.__init__ = cls.__dict__.get("__init__", DraftConfig.__init__)
        super().__init_subclass__(**kwargs)

    def __init__(self, **values: Any):
        for name, default in all_options(type(self), {}).items():
            setattr(self, name, values.pop(name, default))
        self.target_config = self.target_config or {}
        super().__init__(**values)

    def note_target(self, target: TargetWeights) -> None:
        """Record the target that the draft was trained for; clear the old name if the weights differ."""
        weights = tensors_fingerprint(target)
        if weights is None or weights != self.target_weights:
            self.target_name = None
        self.target_weights, self.target_int8 = weights, target.weights is not None
        self.target_norms = norms_fingerprint(target)
        self.target_tokens = tokens_fingerprint(target.tokenizer)

    @property
    def tree_shape(self) -> TreeShape:
        """Return the default tree, at most as deep as the number of heads."""
        return CLOVER2_TREE.cut(self.num_heads) if self.tree is None else TreeShape.from_paths(self.tree)

    @property
    def changed(self) -> dict[str, Any]:
        """Return the system's own fields that differ from their defaults, except those that depend on the target."""
        defaults = {name: getattr(type(self), name) for name in get_annotations(type(self))}
        return {
            name: getattr(self, name)
            for name, default in defaults.items()
            if default is not None and getattr(self, name) != default
        }

    @property
    def target_shape(self) -> PretrainedConfig:
        """Return the target's configuration as an object of its class, which maps the family's names of sizes.

        UserError if transformers does not have that class, because the target's code came with its weights.
        """
        described = self.target_config or {}
        if (kind := described.get("model_type")) is not None and kind not in CONFIG_MAPPING:
            raise UserError(
                f"no draft can be built like the target: its type, {kind}, is not one of transformers' own; "
                "--tree lookup needs no draft"
            )
        return AutoConfig.for_model(**described)


def check_draft_options(config_class: Any, options: Mapping[str, Any], source: str) -> None:
    """Check the fields of a draft's configuration, and ignore others. UserError names the source and the field."""
    validated(_model(config_class), dict(options), source)


def check_names(config_class: Any, options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that a draft system does not have."""
    known = sorted(name for name in all_options(config_class, {}) if not name.startswith("target_"))
    for name in options:
        if name not in known:
            raise UserError(f"{config_class.model_type} has no option {name!r}; it has {', '.join(known)}")


def all_options(config_class: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a new draft: the given ones, and the defaults of the others."""
    return {name: getattr(config_class, name) for name in _hints(config_class)} | dict(options)


def check_target(target_config: Mapping[str, Any], target: TargetWeights) -> None:
    """Raise UserError for the first field in which `target` is not the model of `DraftConfig.target_config`."""
    if other := _other_field(target_config, target):
        name, expected, found = other
        raise UserError(
            f"this draft does not fit the target: it was trained for {name} = {expected!r}, the target has "
            f"{found!r}; give the draft's own target or train a draft for this one"
        )


class Fit(IntEnum):
    """How closely a target matches the model that a draft was trained for."""

    NONE = 0
    SHAPE = 1  # architecture, sizes and tokens agree, as in a fine-tune
    MODEL = 2  # the name or the norms agree, too: another quantization, or a fine-tune that looks like one
    WEIGHTS = 3


def fit_of(described: Mapping[str, Any], target: TargetWeights, named: str = "") -> Fit:
    """Return how closely a target matches the model in a draft's config.json; `named` is the user's name for it."""
    if _other_field(described.get("target_config") or {}, target):
        return Fit.NONE
    if described.get("target_weights") in {tensors_fingerprint(target)} - {None}:
        return Fit.WEIGHTS
    tokens = tokens_fingerprint(target.tokenizer)
    if tokens is None or described.get("target_tokens") != tokens:
        return Fit.NONE
    same = described.get("target_norms") == norms_fingerprint(target) or _is_named(described, target, named)
    return Fit.MODEL if same else Fit.SHAPE


def _is_named(described: Mapping[str, Any], target: TargetWeights, named: str) -> bool:
    """Return whether a name of the target contains the name of the draft's model."""
    names = [named, *(getattr(target.config, name, "") for name in ("_name_or_path", "_model_name_or_path"))]
    known, *found = (
        re.sub("[^a-z0-9]", "", str(one).lower()) for one in (described.get("target_name") or "", *names)
    )
    return bool(known) and any(known in one for one in found)


def _other_field(target_config: Mapping[str, Any], target: TargetWeights) -> tuple[str, Any, Any] | None:
    """Return the first field in which `target` differs: its name, the expected and the found value; None if none."""
    for name in _TARGET_FIELDS:
        expected = target_config.get(target.config.attribute_map.get(name, name))
        found = getattr(target.config, name, None)
        if expected != found or type(expected) is not type(found):
            return name, expected, found
    return None


@lru_cache(maxsize=32)
def _hints(config_class: Any) -> dict[str, Any]:
    """Return the annotations of a configuration's fields."""
    bases = [base for base in reversed(config_class.__mro__) if issubclass(base, DraftConfig)]
    return {name: kind for base in bases for name, kind in get_annotations(base, eval_str=True).items()}


@lru_cache(maxsize=32)
def _model(config_class: Any) -> Any:
    """Return a pydantic model of the fields, and of the dtype, which transformers stores."""
    fields: dict[str, Any] = {
        name: (kind, getattr(config_class, name)) for name, kind in _hints(config_class).items()
    }
    return create_model(config_class.__name__, **fields, dtype=(_DType | None, None))
