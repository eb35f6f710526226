"""What transformers' `generate` prepared, in the engine's words; whatever has no equal there is an error.

The logits processors and stopping criteria are read themselves, not the options they came from: none can be missed.

Shapes: B rows of the batch, T columns of the (left-padded) prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode

from clover.errors import UserError

# The order in which the Sampler applies what these processors stand for; bans commute with each other.
_BANS = 2
_STAGES: dict[type, int] = {
    hf.SequenceBiasLogitsProcessor: 0,
    hf.RepetitionPenaltyLogitsProcessor: 1,
    hf.NoBadWordsLogitsProcessor: _BANS,
    hf.SuppressTokensLogitsProcessor: _BANS,
    hf.TemperatureLogitsWarper: 3,
    hf.TopKLogitsWarper: 4,
    hf.TopPLogitsWarper: 5,
    hf.MinPLogitsWarper: 6,
    hf.LogitNormalization: 7,
}
_WARPERS = ("temperature", "top_k", "top_p", "min_p")
_NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_PREPARED = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
_PREPARED += ("cache_position",)  # of older releases


def refused(what: str) -> UserError:
    """The error for an option without an equal."""
    return UserError(f"speculative decoding cannot honour {what}; leave it out, or leave custom_generate out")


def check_options(config: hf.GenerationConfig, arguments: Mapping[str, Any]) -> None:
    """Raise UserError for a generation mode, an option or an argument of `generate` that cannot be honoured."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise refused(f"the generation mode {mode.value}")
    for name in (*_NOT_RETURNED, "cache_implementation", "prefill_chunk_size"):
        if getattr(config, name, None):
            raise refused(name)
    if config.use_cache is False:
        raise refused("use_cache=False")
    cache = arguments.get("past_key_values")
    if cache is not None and (cache.get_seq_length() or getattr(cache, "_is_user_defined", False)):
        raise refused("past_key_values")
    for name, value in arguments.items():
        if name not in _PREPARED and value is not None and value is not False:
            raise refused(name)


def read_prompts(input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[tuple[int, ...]]:
    """Tokens of each row of input_ids Long [B, T] without its padding, where the mask [B, T] is 0.

    UserError for positions Long [B, T] that do not follow from the mask, and for padding elsewhere than on the left.
    """
    if input_ids.shape[1] == 0:
        raise refused("inputs_embeds or an empty prompt")
    real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device) != 0
    if bool((real[:, :-1] & ~real[:, 1:]).any()) or not bool(real[:, -1].all()):
        raise UserError("the attention mask is not one of padding on the left; set padding_side='left'")
    expected = real.long().cumsum(-1) - 1
    if positions is not None and bool(((positions.to(expected.device) != expected) & real).any()):
        raise refused("position_ids of one's own")
    return [tuple(row[keep].tolist()) for row, keep in zip(input_ids, real, strict=True)]


def sampling_options(
    processors: Iterable[hf.LogitsProcessor], padding: Sequence[int], do_sample: bool | None
) -> dict[str, Any]:
    """Fields of SamplingParams, the seed left out, that do what the processors do, in the same order.

    `padding` says how many tokens of each row's prompt are padding. Without `do_sample` no warper changes anything.

    >>> sampling_options([hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(20)], [0], do_sample=True)
    {'temperature': 0.7, 'logit_bias': {}, 'banned_tokens': (), 'top_k': 20}
    """
    options: dict[str, Any] = {"temperature": 1.0, "logit_bias": {}, "banned_tokens": ()}
    stage = -1
    for processor in processors:
        name = type(processor).__name__
        if type(processor) not in _STAGES:
            raise refused(f"the logits processor {name}")
        last, stage = stage, _STAGES[type(processor)]
        if stage < last or stage == last != _BANS:
            raise refused(f"the logits processor {name} after one that it usually precedes, or twice")
        options |= _options_of(processor, padding, options["banned_tokens"])
    return options if do_sample else {name: value for name, value in options.items() if name not in _WARPERS}


def _options_of(processor: Any, padding: Sequence[int], banned: tuple[int, ...]) -> dict[str, Any]:
    match processor:
        case hf.SequenceBiasLogitsProcessor():  # NoBadWordsLogitsProcessor is one too
            bias = _token_bias(processor)
            never = [token for token, value in bias.items() if value == -torch.inf]
            given = {} if isinstance(processor, hf.NoBadWordsLogitsProcessor) else {"logit_bias": bias}
            for token in never:
                del bias[token]
            return {**given, "banned_tokens": (*banned, *never)}
        case hf.SuppressTokensLogitsProcessor():
            return {"banned_tokens": (*banned, *processor.suppress_tokens.tolist())}
        case hf.RepetitionPenaltyLogitsProcessor():
            ignored = processor.prompt_ignore_length
            if ignored is not None and (isinstance(ignored, int) or ignored.tolist() != list(padding)):
                raise refused("RepetitionPenaltyLogitsProcessor with prompt_ignore_length")
            return {"repetition_penalty": processor.penalty}
        case hf.TemperatureLogitsWarper():
            return {"temperature": processor.temperature}
        case hf.LogitNormalization():
            return {}
    if processor.min_tokens_to_keep != 1 or processor.filter_value != -torch.inf:
        raise refused(f"{type(processor).__name__} with min_tokens_to_keep or filter_value")
    return {name: getattr(processor, name) for name in _WARPERS if hasattr(processor, name)}


def _token_bias(processor: hf.SequenceBiasLogitsProcessor) -> dict[int, float]:
    for tokens in processor.sequence_bias:
        if len(tokens) > 1:
            raise refused(f"{type(processor).__name__} on several tokens in a row, {list(map(int, tokens))}")
    return {int(token): float(value) for (token,), value in processor.sequence_bias.items()}


@dataclass(frozen=True)
class Ending:
    """When a row ends: at so many columns (padding included), after a token of `eos`, or where a criterion says so."""

    max_length: int
    eos: frozenset[int]
    criteria: tuple[hf.StoppingCriteria, ...]

    @classmethod
    def read(cls, criteria: Iterable[hf.StoppingCriteria], batch_size: int) -> Ending:
        """Read the stopping criteria; UserError for those of other kinds than `generate` makes itself."""
        lengths, eos, others = [], set(), []
        for criterion in criteria:
            if type(criterion) is hf.MaxLengthCriteria:
                lengths.append(criterion.max_length)
            elif type(criterion) is hf.EosTokenCriteria:
                eos.update(criterion.eos_token_id.tolist())
            elif type(criterion) in (hf.StopStringCriteria, hf.MaxTimeCriteria):
                others.append(criterion)
            else:
                raise refused(f"the stopping criterion {type(criterion).__name__}")
        if others and not eos and batch_size > 1:
            raise UserError("stop_strings and max_time end rows one by one; set eos_token_id for padding")
        return cls(min(lengths), frozenset(eos), tuple(others))
