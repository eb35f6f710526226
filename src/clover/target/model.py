"""The target model: an unpatched causal language model of transformers, run on token trees.

Shape legend: B batch, T text, N nodes (new tokens), H hidden, V vocabulary, S' slots seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from clover.cache import KVCache
from clover.cpu import fast_copy
from clover.errors import UserError
from clover.fixed_cache import FixedCache
from clover.target import loading, support
from clover.target.gguf import find_source, hidden_bar
from clover.target.probe import check_tree, run_plainly, windows_hold
from clover.target.protocol import HiddenStates
from clover.target.session import CachedSession
from clover.target.structure import (
    LogitsHead,
    Taps,
    cache_argument,
    find_layers,
    kv_shape,
    place_of_final_norm,
)
from clover.target.windows import Windows


class TargetModel:
    """A frozen causal language model and all that the rest of Clover may know of it.

    The model is an ``AutoModelForCausalLM``, or one for images and text of which only the text decoder runs, with SDPA
    attention, or eager attention if its class has no SDPA; it is set to evaluation and its weights are frozen. A
    tokenizer is needed if text is to be used. UserError if the model cannot be run losslessly on token trees, as a
    probe of a few tokens finds.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        support.check_config(model.config)
        self.model = model.eval().requires_grad_(False)
        self.config: PretrainedConfig = support.text_config(model.config)
        self.tokenizer = tokenizer
        self.name = support.model_type(model.config)
        support.check_fields(getattr(model, "generation_config", None), f"{self.name}: generation_config")
        if model.config._attn_implementation != (wanted := support.attention_of(model.config)):
            raise UserError(f"{self.name}: load the target model with attn_implementation='{wanted}'")
        base: Any = model.base_model if self.config is model.config else model.get_decoder().base_model
        if model.get_output_embeddings() is None or base is model:
            raise UserError(
                f"{self.name} ({type(model).__name__}) is no causal language model with an lm_head"
            )
        head: Any = model.get_output_embeddings()
        loading.check_device(head.weight.device)
        # What runs is, on a CPU, a copy of the model's structure with faster layers over the same weights.
        self.base: nn.Module
        self.base, head = fast_copy(nn.ModuleList([base, head]))
        self._cache_argument = cache_argument(self.base)
        self.head = LogitsHead(head, self.config)
        self.windows = Windows()
        with torch.no_grad():
            plain = run_plainly(self)
            self.kv_shape = kv_shape(plain.cache, self.config)
            owner, name = place_of_final_norm(self.base, self.layers, self.name)
            self.final_norm: nn.Module = getattr(owner, name)
            check_tree(self, plain)
            if windows_hold(self, plain):
                self.windows = Windows.of(self.config)
        self._limit = support.longest_run(self.config, inside_windows=not self.windows.sizes)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        trust_remote_code: bool = False,
    ) -> TargetModel:
        """Load a model and, if it has one, its tokenizer: from a directory, or by a name on the hub; safetensors only.

        UserError if files are missing or broken, or the model, dtype or device cannot be used.

        Args:
            dtype: such as ``bfloat16``; default float32 on a CPU, bfloat16 on a GPU. ``fastest`` measures the two.
            device: such as ``cuda:0``; default the GPU if there is one.
            trust_remote_code: run Python code that comes with the model.
        """
        device = loading.resolve_device(device)
        resolved = None if dtype == "fastest" else loading.resolve_dtype(dtype, device)
        source = find_source(str(name_or_path))
        with hidden_bar(source):
            config = loading.load_config(source, trust_remote_code)
            dtype = resolved or loading.fastest_dtype(config.get_text_config().hidden_size, device)
            model = loading.load_model(source, config, dtype, device, trust_remote_code)
            tokenizer = loading.load_tokenizer(source, trust_remote_code)
        return cls(model, tokenizer)

    def require_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, for what cannot do without; UserError if there is none."""
        if self.tokenizer is None:
            raise UserError(
                "the target has no tokenizer, which texts need; save the model's own beside its weights"
            )
        return self.tokenizer

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the lm_head is."""
        return self.lm_head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and hidden states."""
        return self.lm_head_weight.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as `--dtype` names it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def lm_head_weight(self) -> Tensor:
        """[V, H], frozen."""
        return self.head.linear.weight

    @property
    def embedding_weight(self) -> Tensor:
        """[V, H], frozen; unscaled, also for models that scale embeddings."""
        return cast(Tensor, self.model.get_input_embeddings().weight)

    @property
    def vocab_size(self) -> int:
        """V, rows of the lm_head."""
        return self.lm_head_weight.shape[0]

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.lm_head_weight.shape[1]

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return self.kv_shape[0]

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers themselves."""
        return find_layers(self.base, self.num_layers, self.name)

    @property
    def last_layer(self) -> nn.Module:
        """Return the last decoder layer."""
        return self.layers[-1]

    def described_config(self) -> dict[str, Any]:
        """Return the configuration as a draft stores it: the model's class included, its location left out."""
        described = {key: value for key, value in self.config.to_dict().items() if key != "_name_or_path"}
        if self.config is self.model.config:  # a model that was never saved does not name its class
            described["architectures"] = described.get("architectures") or [type(self.model).__name__]
        return described

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return all weights by name."""
        return self.model.state_dict()

    @property
    def longest_run(self) -> int:
        """Return the largest number of tokens of one text, new tokens included; no draft token lies beyond."""
        return self._limit[0]

    @property
    def run_limit(self) -> str:
        """Return what sets `longest_run`, such as "context", for error messages."""
        return self._limit[1]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text, from the generation configuration and the configuration; may be empty."""
        generation = getattr(self.model, "generation_config", None)
        configs = (generation, self.model.config, self.config)
        return tuple(dict.fromkeys(token for config in configs for token in support.eos_tokens(config)))

    # -- running -------------------------------------------------------------------------------------------------

    def open(self, rows: int, capacity: int) -> CachedSession:
        """Return a session for B empty texts, with room for `capacity` tokens each; it grows when it needs more."""
        return CachedSession(self, self.new_cache(rows, capacity))

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for B rows with room for ``capacity`` tokens each; it grows when needed."""
        return KVCache.new(self.kv_shape, batch_size, capacity, self.lm_head_weight)

    def hidden_width(self, hidden_state: str) -> int:
        """W, the width of hidden states of a kind (one of HIDDEN_STATES)."""
        return self.hidden_size * (3 if hidden_state == "low_middle_high" else 1)

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        mask: Tensor | None = None,
        hidden_state: str = "post_norm",
    ) -> HiddenStates:
        """Run new tokens on top of a cache; the caller has called ``cache.begin(N)`` and will ``keep`` or ``commit``.

        Args:
            tokens: Long [B, N].
            positions: Long [B, N], the place of each token in its text, from 0.
            cache: of this model, B rows.
            mask: Bool [B, 1, N, S'] from ``cache.attention_mask``; None for plain text.
            hidden_state: kind of the hidden states to read, one of HIDDEN_STATES.
        """
        return self._run(
            hidden_state,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.windows.masks(mask, positions, cache, self.dtype),
            use_cache=True,
            **{self._cache_argument: cache},
        )

    def forward_fixed(
        self, tokens: Tensor, depths: Tensor, ancestor_mask: Tensor, cache: FixedCache, taps: Taps
    ) -> HiddenStates:
        """`forward` for trees in fixed shapes, as a compiler can trace it; nothing is asked of the host.

        `tokens` and `depths` are Long [B, N], `ancestor_mask` Bool [B, N, N]; `taps` are active.
        """
        mask, positions = cache.attention_mask(ancestor_mask), cache.positions(1) + depths
        cache.begin(tokens.shape[1])
        hidden = self.base(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.windows.masks(mask, positions, cache, self.dtype),
            use_cache=True,
            **{self._cache_argument: cache},
        ).last_hidden_state
        return HiddenStates(hidden, taps.take(hidden))

    def taps(self, hidden_state: str) -> Taps:
        """What reads hidden states of a kind (one of HIDDEN_STATES) inside a compiled forward."""
        return Taps(self._readers[hidden_state])

    @torch.no_grad()
    def train_forward(self, tokens: Tensor, hidden_state: str = "post_norm") -> HiddenStates:
        """Hidden states of whole texts: Long [B, T], padded on the right by any token; causal, without a cache."""
        return self._run(hidden_state, input_ids=tokens, use_cache=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H] after the final norm, scaled and capped as the model does."""
        return self.head(hidden)

    def _run(self, hidden_state: str, **inputs: object) -> HiddenStates:
        taps = self.taps(hidden_state)
        with taps.active():
            hidden = self.base(**inputs).last_hidden_state
        return HiddenStates(hidden, taps.take(hidden))

    @cached_property
    def _readers(self) -> dict[str, list[nn.Module]]:
        """Per kind of hidden states, the modules whose inputs they are; three layers as in EAGLE-3 (2503.01840)."""
        middle = self.num_layers // 2
        three = (min(2, middle), middle, max(self.num_layers - 3, middle))
        layers = [self.layers[index] for index in three]
        return {"post_norm": [], "pre_norm": [self.final_norm], "low_middle_high": layers}
