"""Clover-1 and Clover-2 on vLLM: augmenting layers of the target's own kind, with paged keys and values.

Only their first passes use keys and values. Shapes: R rows, H hidden, N heads of Clover-1.
"""

# pyright: reportMissingImports=false

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.utils import maybe_prefix

from clover.drafts.clover1 import Clover1Draft
from clover.drafts.clover2 import Clover2Draft
from clover.integrations.vllm.base import CloverForCausalLM
from clover.target.decoder import short_config

_STACK = "augment.stack."


class _Augmenting(CloverForCausalLM):
    """A draft with augmenting layers: vLLM's own model of the target's architecture, cut to a few layers."""

    def add_attention(self, vllm_config: VllmConfig, prefix: str) -> None:
        self.draft.augment = None
        target = self.config.target_config
        short = short_config(target, getattr(self.config, "num_augmenting_layers", 1))
        config = vllm_config.with_hf_config(short, architectures=target["architectures"])
        config.quant_config = None  # because the draft's layers are never quantized
        self.layers: Any = initialize_model(vllm_config=config, prefix=maybe_prefix(prefix, "clover"))
        self._tables = {
            f"layers.{name}.weight"
            for name, part in self.layers.named_modules()
            if isinstance(part, VocabParallelEmbedding)
        }

    def augment(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """Run the layers and their final norm, if they have one: [R, H] to [R, H]."""
        return self.layers(input_ids=None, positions=positions, inputs_embeds=inputs)

    def load_layers(self, weights: list[tuple[str, Tensor]]) -> set[str]:
        named = [("model." + name.removeprefix(_STACK), weight) for name, weight in weights]
        return {f"layers.{name}" for name in self.layers.load_weights(named)} | self._tables


class Clover2ForCausalLM(_Augmenting):
    """Clover-2 on vLLM."""

    draft_class = Clover2Draft

    def first(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        folded = self.draft.fold(states, self.draft.embed(tokens).to(states.dtype))
        augmented, output = self.draft.step(0, self.augment(folded, positions), tokens)
        return output, augmented

    def later(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, output = self.draft.step(1, states, tokens)
        return output, states


class Clover1ForCausalLM(_Augmenting):
    """Clover-1 on vLLM. It counts the passes, because each depth has a head, and the driver does not give the depth."""

    draft_class = Clover1Draft
    depth: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        drafted = vllm_config.speculative_config.num_speculative_tokens
        if drafted > self.config.num_heads:
            raise ValueError(
                f"this Clover-1 draft has {self.config.num_heads} heads: it cannot draft {drafted} tokens"
            )
        # The count is on the device, so that a captured CUDA graph also counts.
        self.register_buffer("depth", torch.zeros(1, dtype=torch.long), persistent=False)

    def add_attention(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().add_attention(vllm_config, prefix)
        self.layers.model.norm = _NoNorm()

    def first(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        self.depth.zero_()
        return self._connected(self.augment(states, positions), tokens)

    def later(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.depth.add_(1)
        return self._connected(states, tokens)

    def _connected(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        draft = self.draft
        states = draft.connect(states, draft.embed(tokens).to(states.dtype))
        linear = [head.linear for head in draft.heads]
        weight, bias = (torch.stack([getattr(one, name) for one in linear]) for name in ("weight", "bias"))
        read = F.linear(states, weight[self.depth][0], bias[self.depth][0])
        return draft.output_norm(states + F.silu(read)), states


class _NoNorm(nn.Module):
    """A replacement for the final norm that only adds the residual, with the signature of vLLM's norms."""

    def forward(self, states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return states + residual, residual
