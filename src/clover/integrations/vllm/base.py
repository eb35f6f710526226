"""The base of all Clover drafts on vLLM: the driver's contract, the target's weights, and the two kinds of passes.

vLLM's EAGLE driver calls a draft once per drafted token. Pass 0 gets all rows that the target has just run, with the
target's post-norm state h_t and the token x_{t+1} at each position t. From its result, the driver keeps the row of each
request after which it drafts. Every later pass gets one row per request: the state from the pass before, and the newest
token. A pass returns the input of the lm_head, and the state for the next pass.

Weights and steps are those of `clover.drafts`, so that both engines draft the same tokens. Small layers are complete on
every rank of a tensor-parallel group; attention is sharded.

Shapes: R rows of one pass, H hidden, V vocabulary, V' draft vocabulary.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models import ModelRegistry

from clover.drafts.config import check_draft_options
from clover.drafts.vocabulary import check_map, over_all_tokens
from clover.integrations.vllm.names import MADE_FOR, TESTED

_log = init_logger(f"vllm.{__name__}")


def register_models(places: Mapping[str, str]) -> None:
    """Register architectures by the places of their classes, "module:class"; warn if vLLM's version is unsupported."""
    first, end = MADE_FOR
    if not first <= tuple(vllm.__version_tuple__[:2]) < end:
        _log.warning(
            "Clover's drafts are made for vLLM %d.%d to before %d.%d and tested with %s; this is %s",
            *(*first, *end, TESTED, vllm.__version__),
        )
    for name, place in places.items():
        ModelRegistry.register_model(name, place)


class Passes(nn.Module):
    """The draft's inner model in the driver's terms: it has the shared embedding, and distinguishes pass 0 from others.

    There is no official signal. Model runner V1 calls `set_skip_topk` around pass 0, because the exported configuration
    has `index_share_for_mtp_iteration`. Model runner V2 runs pass 0 with the attention metadata of the target's step,
    which also contains the target's layers. RuntimeError if a version of vLLM does neither.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(1, hidden_size)  # the driver replaces it with the target's
        self.own_layers: frozenset[str] = frozenset()
        self._announced: bool | None = None
        self._seen = False

    def set_skip_topk(self, skip: bool) -> None:
        self._announced = not skip

    def compact_topk_indices(self, rows: Tensor) -> None:
        """Do nothing. The method belongs to the same hook, but the drafts have no such indices."""

    def is_first(self) -> bool:
        """Return whether the current pass is pass 0; True in a run without text, because pass 0 is the larger."""
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return True
        if self._announced is not None:
            return self._announced
        names = metadata[0] if isinstance(metadata, list) else metadata
        if first := not self.own_layers.issuperset(names):
            self._seen = True
        elif not self._seen:
            raise RuntimeError(
                f"vLLM {vllm.__version__} does not tell a draft which pass it runs, so Clover's drafts cannot run on "
                f"it; use {TESTED} (docs/vllm.md)"
            )
        return first


class CloverForCausalLM(nn.Module):
    """The base of the three systems. A subclass sets `draft_class`, and defines the two kinds of passes."""

    has_own_embed_tokens = False
    has_own_lm_head = False
    draft_class: Any
    lm_head: VocabParallelEmbedding  # the driver sets it to the target's

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        if get_pp_group().world_size > 1:
            raise ValueError("Clover's drafts do not run with pipeline parallelism; use tensor parallelism")
        config = vllm_config.speculative_config.draft_model_config.hf_config
        fields = getattr(config, "clover", None)
        if not isinstance(fields, dict):
            raise ValueError("this draft was not written by `clover export --to vllm`")
        check_draft_options(self.draft_class.config_class, fields, "the draft's config.json")
        self.config = self.draft_class.config_class(
            **{name: value for name, value in fields.items() if name != "model_type"}
        )
        _check_target(self.config.target_config, vllm_config.model_config.hf_text_config)
        self.draft = self.draft_class(self.config).to(torch.get_default_dtype())
        self.model = Passes(config.hidden_size)
        self.vocab_size = config.vocab_size
        self.logits_processor = LogitsProcessor(self.vocab_size)
        layers = vllm_config.compilation_config.static_forward_context
        before = set(layers)
        self.add_attention(vllm_config, prefix)
        self.model.own_layers = frozenset(set(layers) - before)
        self._reduced: Tensor | None = None  # [V', H], or this rank's share of the rows

    def add_attention(self, vllm_config: VllmConfig, prefix: str) -> None:
        """Create the layers with paged keys and values."""
        raise NotImplementedError

    def first(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Run pass 0, from states [R, H], tokens and positions Long [R] to outputs and next states, both [R, H]."""
        raise NotImplementedError

    def later(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run a later pass, with the same shapes."""
        raise NotImplementedError

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden_states: Tensor,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run one pass of the driver; return the input of the lm_head and the next state, both [R, H]."""
        if inputs_embeds is not None:
            raise NotImplementedError("Clover's drafts read tokens, not embeddings of images or sound")
        self._bind()
        tokens = input_ids.long()
        if self.model.is_first():
            return self.first(hidden_states, tokens, positions if positions.ndim == 1 else positions[0])
        return self.later(hidden_states, tokens)

    def compute_logits(self, outputs: Tensor) -> Tensor | None:
        """Return logits [R, V] of outputs [R, H]; -inf for tokens that the draft does not propose."""
        if self._reduced is None:
            return self.logits_processor(self.lm_head, outputs, getattr(self.lm_head, "bias", None))
        logits = outputs @ self._reduced.T
        if get_tensor_model_parallel_world_size() > 1:
            logits = tensor_model_parallel_all_gather(logits)
        assert self.draft.d2t is not None
        own = logits[:, : len(self.draft.d2t)]
        return over_all_tokens(own, self.draft.d2t, self.vocab_size, -torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the draft's own weights; those of the augmenting layers go to `load_layers`."""
        own = dict(self.draft.named_parameters()) | dict(self.draft.named_buffers())
        layers, loaded = [], {"model.embed_tokens.weight"}
        for name, weight in weights:
            if name.startswith("augment."):
                layers.append((name, weight))
                continue
            if name not in own or own[name].shape != weight.shape:
                raise ValueError(f"the draft's weight {name} does not fit; export the draft again")
            own[name].data.copy_(weight)
            loaded.add(f"draft.{name}")
        if self.draft.d2t is not None:
            check_map(self.draft.d2t, self.vocab_size)
        return loaded | self.load_layers(layers)

    def load_layers(self, weights: list[tuple[str, Tensor]]) -> set[str]:
        """Load weights of the layers that `add_attention` created; return their names in this module."""
        return set()

    def _bind(self) -> None:
        """Give the target's rows to the draft. The driver shares them before the first pass."""
        if self.draft._target is not None:
            return
        head, embedding = (_rows(layer, self.vocab_size) for layer in (self.lm_head, self.model.embed_tokens))
        self.draft._target = SimpleNamespace(
            lm_head_weight=head,
            embedding_weight=embedding,
            vocab_size=self.vocab_size,
            device=self.draft.device,
        )
        if isinstance(head, Tensor) and isinstance(embedding, Tensor):
            self.draft.make_tables()
        if self.draft.d2t is not None:
            if getattr(self.lm_head, "bias", None) is not None:
                raise ValueError("a reduced draft vocabulary cannot be combined with a bias of the lm_head")
            ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
            rows = head[self.draft.d2t]
            rows = nn.functional.pad(rows, (0, 0, 0, -len(rows) % ranks))
            self._reduced = rows.chunk(ranks)[rank].contiguous()


class _ShardedRows:
    """The rows of a table that is sharded over ranks or quantized; they are indexed like those of a tensor [V, H]."""

    def __init__(self, layer: VocabParallelEmbedding):
        self._layer = layer

    def __getitem__(self, tokens: Tensor) -> Tensor:
        # Called directly, because vLLM's lm_head is an embedding whose own `forward` raises an error.
        found = VocabParallelEmbedding.forward(self._layer, tokens.flatten())
        return found.view(*tokens.shape, -1)


def _rows(layer: VocabParallelEmbedding, count: int) -> Tensor | _ShardedRows:
    weight = getattr(layer, "weight", None)
    if get_tensor_model_parallel_world_size() > 1 or not isinstance(weight, Tensor):
        return _ShardedRows(layer)
    plain = weight.is_floating_point() and weight.shape[1] == layer.embedding_dim
    return weight.data[:count] if plain else _ShardedRows(layer)


def _check_target(trained_for: Mapping[str, Any], served: Any) -> None:
    for name in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"):
        expected, found = trained_for.get(name), getattr(served, name, None)
        if expected is not None and expected != found:
            raise ValueError(
                f"this draft was trained for a target with {name} = {expected}; the target served has {found}"
            )
