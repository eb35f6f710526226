"""The target model: an unpatched causal language model of transformers, run on token trees.

Shape legend: B batch, T text, N nodes (new tokens), H hidden, V vocabulary, S' slots seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from clover.cpu.apply import why_not_packed
from clover.cpu.attention import group_queries
from clover.errors import UserError, one_line
from clover.target import loading, support
from clover.target.cached_model import CachedModel
from clover.target.calibration import calibrate
from clover.target.converted import kept_name, place_of
from clover.target.exact import why_inexact
from clover.target.probe import PlainRun, check_tree, run_plainly, windows_hold
from clover.target.protocol import Target
from clover.target.session import CachedSession
from clover.target.source import find_source
from clover.target.structure import kv_shape, place_of_final_norm
from clover.target.windows import Windows


class TargetModel(CachedModel):
    """A target (`clover.target.protocol.TargetWeights`) that runs an unpatched causal language model of transformers.

    The model is an ``AutoModelForCausalLM``, or one for images and text, whose text decoder alone runs. It must use
    SDPA attention, or eager attention if its class has no SDPA. It is set to evaluation mode and its weights are
    frozen. A run of a few tokens shows how it is built; UserError if it cannot verify token trees without loss.

    Args:
        tokenizer: needed for text, not for tokens.
        weights: with "int8" a copy of the model runs, whose linear layers are products of int8.
        kept_name: the name of the int8 weights, and of their calibration, in the weight cache; None to store neither.
        exact: run a copy in which tokens have the same bits however many run together; UserError if that fails.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        weights: str | None = None,
        kept_name: str | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__(model, weights, kept_name, exact)
        self.tokenizer = tokenizer
        if self.weights is not None and self.copied is not None:
            calibrate(self, self.copied, tokenizer, kept_name)
        with torch.no_grad():
            if self.exact and (reason := self._why_inexact()):
                if exact:
                    raise UserError(f"{self.name} cannot be bit-exact here: {reason}; leave --exact out")
                self.exact, self.inexact = False, reason
                warnings.warn(
                    f"{self.name} with int8 weights is not bit-exact: {reason}; texts may differ in near-ties",
                    stacklevel=2,
                )
                group_queries(self.running)
            if not self.exact:
                self._look()
        self._limit = support.longest_run(self.config, inside_windows=not self.windows.sizes)

    def _why_inexact(self) -> str | None:
        """Return why the bits of tokens depend on more than their text; None if they depend only on that."""
        try:
            return why_inexact(self, self._look())
        except (UserError, *loading.FAILURES) as error:
            return one_line(error)

    def _look(self) -> PlainRun:
        """Run a few tokens to find out how the model is built, and to check that token trees run right."""
        plain = run_plainly(self)
        self.kv_shape = kv_shape(plain.cache, self.config)
        owner, name = place_of_final_norm(self.base, self.layers, self.name)
        self.final_norm: nn.Module = getattr(owner, name)
        check_tree(self, plain)
        if windows_hold(self, plain):
            self.windows = Windows.of(self.config)
        return plain

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        trust_remote_code: bool = False,
        weights: str | None = None,
        weight_cache: bool = True,
        exact: bool = False,
        rows: int = loading.FEW_ROWS,
    ) -> TargetModel:
        """Load a model and, if it has one, its tokenizer: from a directory, or by a name on the hub; safetensors only.

        UserError if files are missing or broken, or the model, dtype or device cannot be used.

        Args:
            dtype: such as ``bfloat16``; default float32 on a CPU, bfloat16 on a GPU. ``fastest`` measures both.
            device: such as ``cuda:0``; default the GPU if there is one.
            trust_remote_code: run Python code that comes with the model.
            weights: ``int8`` rounds weights and inputs of linear layers to int8, on a CPU. The default dtype is then
                bfloat16.
            weight_cache: store converted weights, int8 weights and their calibration (`clover.target.weight_cache`),
                and map them from then on.
            exact: let the bits of a token depend only on the text before it, on a CPU (docs/lossless.md). UserError if
                this model and processor cannot.
            rows: tokens per pass, for which ``fastest`` measures; the default suits decoding.
        """
        device = loading.resolve_device(device)
        loading.check_exact(exact, device)
        if loading.check_weights(weights, device) is not None:
            dtype = dtype or torch.bfloat16
        resolved = None if dtype == "fastest" else loading.resolve_dtype(dtype, device)
        source = find_source(str(name_or_path))
        config = loading.load_config(source, trust_remote_code)
        dtype = resolved or loading.fastest_dtype(config.get_text_config().hidden_size, rows, device)
        place, find_name = place_of(source), partial(kept_name, source, config, f"int8-{str(dtype)[6:]}")
        keeps = weights is not None and weight_cache
        name = find_name() if keeps else None
        model = loading.load_model(source, config, dtype, device, trust_remote_code, weight_cache)
        if keeps:  # a name on the hub may have been downloaded now, or have got other files
            name = (name or find_name()) if place_of(source) == place else None
        if weights is None and (line := why_not_packed(model)):
            warnings.warn(f"{source.name}: {line}", stacklevel=2)
        tokenizer = loading.load_tokenizer(source, trust_remote_code)
        return cls(model, tokenizer, weights, name, exact)

    def require_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer; UserError if there is none."""
        return Target.require_tokenizer(self)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def last_layer(self) -> nn.Module:
        """Return the last decoder layer."""
        return self.layers[-1]

    def described_config(self) -> dict[str, Any]:
        """Return the configuration that a draft stores: with the model's class, without its location."""
        described = {key: value for key, value in self.config.to_dict().items() if key != "_name_or_path"}
        if self.config is self.model.config:  # the configuration of an unsaved model does not name the class
            described["architectures"] = described.get("architectures") or [type(self.model).__name__]
        return described

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return all weights by name."""
        return self.model.state_dict()

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a text, from both the generation configuration and the configuration."""
        generation = getattr(self.model, "generation_config", None)
        configs = (generation, self.model.config, self.config)
        return tuple(dict.fromkeys(token for config in configs for token in support.eos_tokens(config)))

    # -- running -------------------------------------------------------------------------------------------------

    def open(self, rows: int, capacity: int) -> CachedSession:
        """Return a session for B empty texts, with room for `capacity` tokens each; it grows when it needs more."""
        return CachedSession(self, self.new_cache(rows, capacity))

    def hidden_width(self, hidden_state: str) -> int:
        """Return W, the width of hidden states of a kind (one of `HIDDEN_STATES`)."""
        return self.hidden_size * (3 if hidden_state == "low_middle_high" else 1)
