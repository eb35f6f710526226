"""Clover-Recall on vLLM: exact, although the driver supports neither of its two ways to read the text.

Both use one attention layer, whose heads have more channels than the draft needs. vLLM's driver prepares the layers of
a draft together, by the shape of the first layer, so layers of different shapes would overrun its buffers.

*The look back.* Drafted positions must not be attended to, but the driver counts them: a later pass writes their keys
and values. One extra channel per head hides them. It is `_FAR` in every query, 0 in the key of a verified position, and
-`_FAR` in the key of a drafted one, so that its weight is exactly 0. The next pass 0 overwrites those keys.

*The window.* u_t reads E[x_t] and E[x_{t-1}], which the driver no longer has when it passes x_{t+1}. A first call of
the layer finds them, in channels that are zero in the look back. The key of position t is its number in Gray code, ±1
per bit; its value is x_{t+1} in hexadecimal digits, in separate channels for even and odd positions. Codes of
neighbours differ in one bit. So the sum of two codes, as a query, scores both equally, and `_SHARP` above any other:
half of each value is returned, exactly. The backend needs no support for this, so prefix caching, chunked prefill and
CUDA graphs work.

Shapes: R rows, H hidden, d = H / heads, N heads of this rank, S padded size of a head.
"""

# pyright: reportMissingImports=false

from dataclasses import dataclass

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

_FAR = 64.0  # its square divided by √d lowers a score more than any key can raise it
_SHARP = 32.0  # exp(_SHARP) outweighs any number of positions
_BITS = 20  # of a position
_DIGITS = 6  # hexadecimal digits of a token


@dataclass(frozen=True)
class ExtraChannels:
    """Extra channels of the keys and values of every head, each [R, S - d]."""

    keys: Tensor  # the mark of drafted positions, then the position in Gray code
    values: Tensor  # the token after the position: its digits, first for even positions, then for odd ones


class RecallForCausalLM(CloverForCausalLM):
    """Clover-Recall on vLLM."""

    draft_class = RecallDraft
    bits: Tensor
    sixteens: Tensor

    def add_attention(self, vllm_config: VllmConfig, prefix: str) -> None:
        if vllm_config.model_config.max_model_len > 2**_BITS:
            raise ValueError(f"Clover-Recall reads texts of up to {2**_BITS:,} tokens; set --max-model-len")
        layer, ranks = self.draft.layer, get_tensor_model_parallel_world_size()
        self.width = layer.hidden_size // layer.num_heads
        self.sharded = ranks > 1 and layer.num_heads % ranks == 0
        count = layer.num_heads // ranks if self.sharded else layer.num_heads
        first = get_tensor_model_parallel_rank() * count if self.sharded else 0
        self.heads = slice(first, first + count)
        self.padded = padded_width(self.width)
        self.look = Attention(
            count,
            self.padded,
            self.width**-0.5,
            cache_config=vllm_config.cache_config,
            prefix=maybe_prefix(prefix, "clover.layers.0.attn"),
        )
        check_backend(
            self.look.attn_backend.get_name(), self.padded, vllm_config.model_config.get_head_size()
        )
        layer.attend = self._attend
        self.register_buffer("bits", torch.arange(_BITS), persistent=False)
        self.register_buffer("sixteens", 16 ** torch.arange(_DIGITS), persistent=False)

    def first(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        draft, following = self.draft, self.draft.embed(tokens).to(states.dtype)
        extra = self._extra_channels(tokens, positions, states.dtype)
        earlier = self._earlier(extra, positions).clamp(0, self.vocab_size - 1)
        exists = positions[:, None] > torch.arange(WindowLinear.earlier, device=positions.device)
        window = draft.embed(earlier).to(states.dtype) * exists[..., None]
        folded = draft.fold.norm(draft.fold.linear(torch.cat((states, following, window.flatten(1)), dim=-1)))
        keys, values = draft.layer.keys_values(folded[None])
        return self._looked_back(states, tokens, keys, values, extra)

    def later(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        nothing = states.new_zeros(1, self.draft.layer.num_heads, len(states), self.width)
        blank = states.new_zeros(len(states), self.padded - self.width)
        marked = ExtraChannels(F.pad(blank[:, 1:], (1, 0), value=-_FAR), blank)
        return self._looked_back(states, tokens, nothing, nothing, marked)

    def _looked_back(
        self, states: Tensor, tokens: Tensor, keys: Tensor, values: Tensor, extra: ExtraChannels
    ) -> tuple[Tensor, Tensor]:
        outputs = self.draft.look_back(states[None], tokens[None], keys, values, extra)[0]
        return outputs, outputs

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, extra: ExtraChannels, causal: bool
    ) -> Tensor:
        """Replace `RecurrentLayer.attend`: [1, heads, R, d] to [1, heads, R, d], through the paged cache."""
        query, keys, values = (x[0].transpose(0, 1)[:, self.heads] for x in (query, keys, values))
        mark = self._room(query.new_full((len(query), 1), _FAR))
        found = self._call(query, keys, values, mark, extra)[..., : self.width]
        if self.sharded:
            found = tensor_model_parallel_all_gather(found.contiguous(), dim=1)
        return found.transpose(0, 1)[None]

    def _call(
        self, query: Tensor, keys: Tensor, values: Tensor, asked: Tensor, extra: ExtraChannels
    ) -> Tensor:
        """Run the layer on inputs [R, N, d], with extra channels [R, S - d] for every head; return [R, N, S]."""
        pairs = ((query, asked), (keys, extra.keys), (values, extra.values))
        whole = [torch.cat((x, y[:, None].expand(-1, x.shape[1], -1)), dim=-1).flatten(1) for x, y in pairs]
        return self.look(*whole).view(len(query), -1, self.padded)

    def _extra_channels(self, tokens: Tensor, positions: Tensor, dtype: torch.dtype) -> ExtraChannels:
        """Return the extra channels of positions Long [R] in the text; `tokens` Long [R] follow these positions."""
        digits = tokens[:, None] // self.sixteens % 16
        values = torch.cat([digits * (positions[:, None] % 2 == parity) for parity in (0, 1)], dim=-1)
        return ExtraChannels(self._room(self._code(positions).to(dtype), 1), self._room(values.to(dtype)))

    def _earlier(self, extra: ExtraChannels, positions: Tensor) -> Tensor:
        """Store the extra channels; return the tokens after each of the two positions before: Long [R, 2].

        The nearest is first. A token is meaningless if there is no such position.
        """
        before = positions[:, None] - torch.arange(1, 1 + WindowLinear.earlier, device=positions.device)
        # Each different bit lowers the score by 4 units.
        unit = _SHARP / 4 / self.width**-0.5
        asked = self._room((self._code(before.clamp(min=0)).sum(1) * unit).to(extra.keys.dtype), 1)
        nothing = asked.new_zeros(len(asked), self.look.num_heads, self.width)
        found = self._call(nothing, nothing, nothing, asked, extra)[:, 0, self.width :]
        # Position 1 has only one position before it, so its whole value is returned.
        digits = found[:, : 2 * _DIGITS].float() * positions[:, None].clamp(max=2)
        tokens = (digits.round().long().view(-1, 2, _DIGITS) * self.sixteens).sum(-1)
        return tokens.gather(1, before % 2)

    def _code(self, positions: Tensor) -> Tensor:
        """Return positions Long [...] in Gray code: [..., bits] of ±1."""
        return ((positions ^ positions >> 1)[..., None] >> self.bits & 1) * 2 - 1

    def _room(self, entries: Tensor, start: int = 0) -> Tensor:
        """Pad entries [R, n] with zeros to [R, S - d]; the entries begin at `start`."""
        return F.pad(entries, (start, self.padded - self.width - start - entries.shape[1]))


def padded_width(width: int) -> int:
    """Return S: a power of two with room for a head and its extra channels; all backends support such sizes."""
    return max(64, 1 << (width + _BITS).bit_length())


def check_backend(name: str, padded: int, targets: int) -> None:
    """Refuse a backend whose buffers have the width of the target's heads, if ours are wider.

    Raises:
        ValueError: the backend would write past the end of its buffers.
    """
    if name.startswith("TRITON") and padded > 1 << (targets - 1).bit_length():
        raise ValueError(
            f"attention backend {name} has no room for Clover-Recall's heads of {padded} numbers (the target's have "
            f"{targets}); choose another with --attention-backend"
        )
