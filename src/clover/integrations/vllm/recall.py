"""Clover-Recall on vLLM: exact, though the driver knows neither of its two looks at the text.

*The look back.* A drafted position must not be looked at, but the driver counts it: a later pass writes keys and values
for it. One more entry per head makes that harmless. It is `_FAR` in every query, 0 in the key of a verified position,
and -`_FAR` in that of a drafted one, whose weight so is exactly 0. The next pass 0 overwrites those keys.

*The window.* u_t reads E[x_t] and E[x_{t-1}], which the driver has forgotten by the time of x_{t+1}. A second attention
layer finds them: the key of position t is its number, one-hot per decimal digit, and its value x_{t+1} in hexadecimal
digits. The query for a position scores `_SHARP` more there than anywhere else, so the value comes back as it is. This
needs nothing of the backend, so prefix caching, chunked prefill and CUDA graphs hold for it.

Shapes: R rows, H hidden, d = H / heads, N heads of this rank, S padded size of a head.
"""

# pyright: reportMissingImports=false

import torch
from torch import Tensor
from torch.nn import functional as F
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import maybe_prefix

from clover.drafts.recall import RecallDraft, WindowLinear
from clover.integrations.vllm.base import CloverForCausalLM

_FAR = 64.0  # its square, divided by the root of d, is a score no key makes up for
_SHARP = 32.0  # e to the power of it outweighs any number of positions
_CODE = 64  # width of keys and values of `TokenMemory`
_DIGITS = 6  # decimal ones of a position, hexadecimal ones of a token


class TokenMemory(torch.nn.Module):
    """Tokens of the text by their position, kept in the paged cache of an attention layer."""

    tens: Tensor
    sixteens: Tensor

    def __init__(self, vllm_config: VllmConfig, prefix: str):
        super().__init__()
        if vllm_config.model_config.max_model_len > 10**_DIGITS:
            raise ValueError(
                f"Clover-Recall reads texts of up to {10**_DIGITS:,} tokens; set --max-model-len"
            )
        self.attention = Attention(
            WindowLinear.earlier,
            _CODE,
            1.0,
            num_kv_heads=1,
            cache_config=vllm_config.cache_config,
            prefix=prefix,
        )
        exponents = torch.arange(_DIGITS)
        self.register_buffer("tens", 10**exponents, persistent=False)
        self.register_buffer("sixteens", 16**exponents, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Keep tokens Long [R], each of which follows its position Long [R]; returns what followed the two before.

        Long [R, 2], the nearest first; meaningless where there is no such position.
        """
        back = torch.arange(1, 1 + WindowLinear.earlier, device=positions.device)
        query = self._code((positions[:, None] - back).clamp(min=0), dtype) * _SHARP
        digits = tokens[:, None] // self.sixteens % 16
        value = F.pad(digits.to(dtype), (0, _CODE - _DIGITS))
        found = self.attention(query.flatten(1), self._code(positions, dtype), value)
        found = found.view(len(tokens), -1, _CODE)[..., :_DIGITS]
        return (found.float().round().long() * self.sixteens).sum(-1)

    def _code(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        digits = F.one_hot(positions[..., None] // self.tens % 10, 10).flatten(-2)
        return F.pad(digits, (0, _CODE - 10 * _DIGITS)).to(dtype)


class RecallForCausalLM(CloverForCausalLM):
    """Clover-Recall on vLLM."""

    draft_class = RecallDraft

    def add_attention(self, vllm_config: VllmConfig, prefix: str) -> None:
        layer, ranks = self.draft.layer, get_tensor_model_parallel_world_size()
        name = maybe_prefix(prefix, "clover.layers.{}.attn")
        self.memory = TokenMemory(vllm_config, name.format(0))
        self.width = layer.hidden_size // layer.num_heads
        self.sharded = ranks > 1 and layer.num_heads % ranks == 0
        count = layer.num_heads // ranks if self.sharded else layer.num_heads
        first = get_tensor_model_parallel_rank() * count if self.sharded else 0
        self.heads = slice(first, first + count)
        padded = max(64, 1 << self.width.bit_length())  # above d; sizes that all backends have
        self.look = Attention(
            count, padded, self.width**-0.5, cache_config=vllm_config.cache_config, prefix=name.format(1)
        )
        layer.attend = self._attend

    def first(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        draft, following = self.draft, self.draft.embed(tokens).to(states.dtype)
        earlier = self.memory(tokens, positions, states.dtype).clamp(0, self.vocab_size - 1)
        exists = positions[:, None] > torch.arange(WindowLinear.earlier, device=positions.device)
        window = draft.embed(earlier).to(states.dtype) * exists[..., None]
        folded = draft.fold.norm(draft.fold.linear(torch.cat((states, following, window.flatten(1)), dim=-1)))
        return self._looked_back(states, tokens, *draft.layer.keys_values(folded[None]))

    def later(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        nothing = states.new_zeros(1, self.draft.layer.num_heads, len(states), self.width)
        return self._looked_back(states, tokens, nothing, nothing, -_FAR)

    def _looked_back(
        self, states: Tensor, tokens: Tensor, keys: Tensor, values: Tensor, mark: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        outputs = self.draft.look_back(states[None], tokens[None], keys, values, mark)[0]
        return outputs, outputs

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mark: float, causal: bool) -> Tensor:
        """Takes the place of `RecurrentLayer.attend`: [1, heads, R, d] to [1, heads, R, d], through the paged cache."""
        query, keys, values = (x[0].transpose(0, 1)[:, self.heads] for x in (query, keys, values))
        size, rows = self.look.head_size, len(query)
        marked = ((query, _FAR), (keys, mark), (values, 0.0))
        padded = [
            torch.cat((F.pad(x, (0, size - self.width - 1)), x.new_full((*x.shape[:2], 1), entry)), dim=-1)
            for x, entry in marked
        ]
        found = self.look(*(x.flatten(1) for x in padded)).view(rows, -1, size)[..., : self.width]
        if self.sharded:
            found = tensor_model_parallel_all_gather(found.contiguous(), dim=1)
        return found.transpose(0, 1)[None]
