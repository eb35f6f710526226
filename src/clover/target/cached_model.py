"""A causal language model of transformers as Clover runs it: new tokens on top of a key-value cache.

Shapes: B batch, T text, N nodes (new tokens), H hidden, V vocabulary, S' slots seen.
"""

import warnings
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from clover.cache import KVCache, KVShape, WholeCache
from clover.cpu import WAITING, fast_copy, is_plain
from clover.cpu.exact import ExactModel
from clover.cpu.fixed_rows import fixed_rows_copy
from clover.cpu.int8 import int8_copy, slower_ways
from clover.errors import UserError
from clover.target import loading, support
from clover.target.protocol import HiddenStates
from clover.target.structure import LogitsHead, Taps, find_layers
from clover.target.structure import cache_argument as find_cache_argument
from clover.target.weight_cache import find_or_make
from clover.target.windows import Windows


class CachedModel:
    """The frozen text decoder and lm_head of a model, unpatched, and their forward passes.

    `TargetModel` adds what only a run of the model shows: the shape of the cache, the final norm and the windows.

    Attributes:
        model: the model itself, which is never changed.
        running: the model whose decoder and lm_head run: `model`, or its exact copy.
        weights: "int8" if weights and inputs of linear layers are rounded to int8; None if they run as they are.
        copied: the exact copy; None if there is none.
        exact: whether the bits of a token depend only on the text before it, as with most int8 targets.
        inexact: why an int8 target is not exact; otherwise "".
        base: the decoder that runs, without lm_head. On a CPU it is a copy with faster layers over the same weights.
        head: the lm_head, from hidden states after the final norm to logits.
        windows: the attention windows that masks must respect.
        cache_argument: the name by which the decoder's forward takes its cache.
    """

    kv_shape: KVShape
    final_norm: nn.Module
    _limit: tuple[int, str]

    def __init__(
        self,
        model: PreTrainedModel,
        weights: str | None = None,
        kept_name: str | None = None,
        exact: bool = False,
    ) -> None:
        _check_class(model)
        support.check_config(model.config)
        self.model = model.eval().requires_grad_(False)
        self.config: PretrainedConfig = support.text_config(model.config)
        self.name = support.model_type(model.config)
        support.check_fields(getattr(model, "generation_config", None), f"{self.name}: generation_config")
        if model.config._attn_implementation != (wanted := support.attention_of(model.config)):
            raise UserError(f"{self.name}: load the target model with attn_implementation='{wanted}'")
        head: Any = model.get_output_embeddings()
        if head is None or self._parts(model)[0] is model:
            raise UserError(
                f"{self.name} ({type(model).__name__}) is not a causal language model with an lm_head"
            )
        if head.weight.is_meta:
            raise UserError(
                f"{self.name}: its lm_head is offloaded (to disk or CPU memory); load the model whole"
            )
        loading.check_device(head.weight.device)
        self.weights = loading.check_weights(weights, head.weight.device)
        loading.check_exact(exact, head.weight.device)
        self.copied = self._exact_copy(exact, kept_name)
        if self.copied is not None and (line := slower_ways(self.weights)):
            warnings.warn(f"{self.name}: {line}", stacklevel=3)
        self.exact, self.inexact = self.copied is not None, ""
        self.running: Any = self.model if self.copied is None else self.copied.model
        self.base: nn.Module
        self.base, head = self._parts(self.running)
        if self.copied is None:
            self.base, head = fast_copy(nn.ModuleList([self.base, head]))
        self.cache_argument = find_cache_argument(self.base)
        self.head = LogitsHead(head, self.config)
        self.windows = Windows()
        self._copies: dict[Tensor, Tensor] = {}

    def _exact_copy(self, wanted: bool, kept_name: str | None) -> ExactModel | None:
        """Return the copy of the model that runs if weights are int8 or exact bits are `wanted`; otherwise None."""
        if self.weights is None:
            return fixed_rows_copy(self.model, self._parts) if wanted else None
        keep = None if kept_name is None else partial(find_or_make, kept_name)
        copied = int8_copy(self.model, self._parts, keep)
        if copied.left:
            warnings.warn(f"{self.name}: {copied.left_words}", stacklevel=4)
        return copied

    def _parts(self, model: Any) -> tuple[nn.Module, Any]:
        """Return the text decoder and the lm_head of a model."""
        base = model.base_model if self.config is self.model.config else model.get_decoder().base_model
        return base, model.get_output_embeddings()

    @property
    def device(self) -> torch.device:
        """Return the device of the lm_head."""
        return self.lm_head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights and hidden states."""
        return self.lm_head_weight.dtype

    @property
    def dtype_name(self) -> str:
        """Return the dtype as `--dtype` names it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def lm_head_weight(self) -> Tensor:
        """Return the frozen weights [V, H] of the lm_head; quantized ones are dequantized."""
        return self._plain(self.head.linear.weight)

    @property
    def embedding_weight(self) -> Tensor:
        """Return the frozen embeddings [V, H], without the model's scale; quantized ones are dequantized."""
        return self._plain(self.model.get_input_embeddings().weight)

    @property
    def vocab_size(self) -> int:
        """Return V, the number of rows of the lm_head."""
        return self.lm_head_weight.shape[0]

    @property
    def hidden_size(self) -> int:
        """Return H."""
        return self.lm_head_weight.shape[1]

    @property
    def num_layers(self) -> int:
        """Return the number of decoder layers."""
        return self.kv_shape[0]

    @property
    def layers(self) -> nn.ModuleList:
        """Return the decoder layers."""
        return find_layers(self.base, self.num_layers, self.name)

    @property
    def longest_run(self) -> int:
        """Return the most tokens of one text, new tokens and draft tokens included."""
        return self._limit[0]

    @property
    def run_limit(self) -> str:
        """Return the cause of the limit `longest_run`, such as "context", for error messages."""
        return self._limit[1]

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Return an empty cache for B rows with room for ``capacity`` tokens each; it grows when needed."""
        kind = WholeCache if self.exact else KVCache
        return kind.new(self.kv_shape, batch_size, capacity, self.lm_head_weight)

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KVCache,
        mask: Tensor | None = None,
        hidden_state: str = "post_norm",
    ) -> HiddenStates:
        """Run new tokens on top of a cache. The caller calls ``cache.begin(N)`` before, and keeps or commits after.

        Args:
            tokens: Long [B, N].
            positions: Long [B, N], the position of each token in its text, from 0.
            cache: a cache of this model with B rows.
            mask: Bool [B, 1, N, S'] from ``cache.attention_mask``; None for plain text.
            hidden_state: the kind of hidden states to read, one of `HIDDEN_STATES`.
        """
        return self._run(
            hidden_state,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.windows.masks(mask, positions, cache, self.dtype),
            use_cache=True,
            **{self.cache_argument: cache},
        )

    def taps(self, hidden_state: str) -> Taps:
        """Return the taps that read hidden states of a kind (one of `HIDDEN_STATES`) during a forward pass."""
        return Taps(self._readers[hidden_state])

    @torch.no_grad()
    def train_forward(self, tokens: Tensor, hidden_state: str = "post_norm") -> HiddenStates:
        """Return the hidden states of whole texts, Long [B, T], without a cache; any token may pad on the right."""
        return self._run(hidden_state, input_ids=tokens, use_cache=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H] after the final norm, scaled and capped by the model."""
        return self.head(hidden)

    def _plain(self, weight: Any) -> Tensor:
        """Return a weight as a plain tensor; a quantized weight is dequantized once."""
        if is_plain(weight) or not hasattr(weight, "__tensor_flatten__"):
            return weight
        if weight not in self._copies:
            self._copies[weight] = weight.dequantize()
        return self._copies[weight]

    def _run(self, hidden_state: str, **inputs: object) -> HiddenStates:
        if self.device.type == "cpu" and not torch.compiler.is_compiling():
            WAITING.look()
        taps = self.taps(hidden_state)
        with taps.active():
            hidden = self.base(**inputs).last_hidden_state
        return HiddenStates(hidden, taps.take(hidden))

    @cached_property
    def _readers(self) -> dict[str, list[nn.Module]]:
        """Map each kind of hidden states to the modules that read them; three layers as in EAGLE-3 (2503.01840)."""
        middle = self.num_layers // 2
        three = (min(2, middle), middle, max(self.num_layers - 3, middle))
        layers = [self.layers[index] for index in three]
        return {"post_norm": [], "pre_norm": [self.final_norm], "low_middle_high": layers}


def _check_class(model: Any) -> None:
    """Raise UserError for a wrapper around a model, and for weights whose passes cannot be repeated."""
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"{kind} is not a model of transformers but wraps one; give the model itself, such as the "
            "get_base_model() of a PeftModel with LoRA"
        )
    for name, module in model.named_modules():
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise UserError(
                f"{kind}: {name} is a quantized layer of torch.ao ({type(module).__name__}), whose scales may depend "
                "on all tokens of a pass; quantize only the weights, as torchao's weight-only schemes do"
            )
