"""What transformers' `generate` prepared, in the engine's words; whatever has no equal there is an error.

The logits processors and stopping criteria are read themselves, not the options they came from: none can be missed.

Shapes: B rows of the batch, T columns of the (left-padded) prompts, P texts of one length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
# Others that look at a text and its scores alone.
_OF_TEXT = (
    *(hf.NoRepeatNGramLogitsProcessor, hf.MinLengthLogitsProcessor, hf.MinNewTokensLengthLogitsProcessor),
    *(hf.ForcedBOSTokenLogitsProcessor, hf.ForcedEOSTokenLogitsProcessor, hf.ExponentialDecayLengthPenalty),
    *(hf.SuppressTokensAtBeginLogitsProcessor, hf.PrefixConstrainedLogitsProcessor),
    *(hf.TypicalLogitsWarper, hf.EpsilonLogitsWarper, hf.EtaLogitsWarper, hf.TopHLogitsWarper),
    hf.InfNanRemoveLogitsProcessor,
)
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


class _NoEqual(Exception):
    """A processor does what no field of SamplingParams does."""


@dataclass(frozen=True, eq=False)
class _RowProcessors:
    """The processors as `generate` runs them, on texts of one row; `padding` Long [1, …] is what they see before it."""

    processors: hf.LogitsProcessorList
    padding: Tensor

    def __call__(self, texts: Tensor, scores: Tensor) -> Tensor:
        run: Any = self.processors
        return run(torch.cat([self.padding.expand(len(texts), -1), texts], dim=1), scores)


def row_options(
    processors: Sequence[hf.LogitsProcessor],
    padding: Sequence[Tensor],
    do_sample: bool | None,
    own: Collection[type] = (),
) -> list[dict[str, Any]]:
    """Fields of each row's SamplingParams, the seed left out, that do what the processors do.

    Where no fields do, the processors themselves are run at every node of a tree.

    Args:
        padding: tokens that are the padding of each row's prompt, Long [1, …].
        own: further classes that may be run so, because they look at nothing but a text and its scores.
    """
    try:
        return [sampling_options(processors, [part.shape[1] for part in padding], do_sample)] * len(padding)
    except _NoEqual:
        pass
    for processor in processors:
        name = type(processor).__name__
        if type(processor) not in (*_STAGES, *_OF_TEXT, *own):
            hint = f" (if it looks at a text and its scores alone: clover.speculative(draft, processors=[{name}]))"
            theirs = type(processor).__module__.startswith("transformers.")
            raise refused(f"the logits processor {name}{'' if theirs else hint}")
    options = {"temperature": 1.0} if do_sample else {}
    rows = (hf.LogitsProcessorList(_of_row(one, row) for one in processors) for row in range(len(padding)))
    return [options | {"process": _RowProcessors(*row)} for row in zip(rows, padding, strict=True)]


def _of_row(processor: Any, row: int) -> hf.LogitsProcessor:
    """The same for one row alone, of those that know the rows of a batch."""
    match processor:
        case hf.PrefixConstrainedLogitsProcessor():
            allowed = processor._prefix_allowed_tokens_fn
            return hf.PrefixConstrainedLogitsProcessor(lambda _, text: allowed(row, text), 1)
        case hf.RepetitionPenaltyLogitsProcessor(prompt_ignore_length=Tensor() as ignored):
            return hf.RepetitionPenaltyLogitsProcessor(processor.penalty, int(ignored[row]))
    return processor


def sampling_options(
    processors: Iterable[hf.LogitsProcessor], padding: Sequence[int], do_sample: bool | None
) -> dict[str, Any]:
    """Fields of SamplingParams, the seed left out, that do what the processors do, in the same order, if any do.

    `padding` says how many tokens of each row's prompt are padding. Without `do_sample` no warper changes anything.

    >>> sampling_options([hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(20)], [0], do_sample=True)
    {'temperature': 0.7, 'logit_bias': {}, 'banned_tokens': (), 'top_k': 20}
    """
    options: dict[str, Any] = {"temperature": 1.0, "logit_bias": {}, "banned_tokens": ()}
    stage = -1
    for processor in processors:
        last, stage = stage, _STAGES.get(type(processor), -1)
        if stage < last or stage == last != _BANS:
            raise _NoEqual
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
                raise _NoEqual
            return {"repetition_penalty": processor.penalty}
        case hf.TemperatureLogitsWarper():
            return {"temperature": processor.temperature}
        case hf.LogitNormalization():
            return {}
    if processor.min_tokens_to_keep != 1 or processor.filter_value != -torch.inf:
        raise _NoEqual
    return {name: getattr(processor, name) for name in _WARPERS if hasattr(processor, name)}


def _token_bias(processor: hf.SequenceBiasLogitsProcessor) -> dict[int, float]:
    for tokens in processor.sequence_bias:
        if len(tokens) > 1:
            raise _NoEqual
    return {int(token): float(value) for (token,), value in processor.sequence_bias.items()}


def read_ends(criteria: Iterable[hf.StoppingCriteria]) -> tuple[int, frozenset[int]]:
    """Columns at which all rows end, padding included, and the tokens after which one does."""
    lengths, eos = [], set[int]()
    for criterion in criteria:
        if isinstance(criterion, hf.MaxLengthCriteria):
            lengths.append(criterion.max_length)
        elif isinstance(criterion, hf.EosTokenCriteria):
            eos.update(criterion.eos_token_id.tolist())
    return min(lengths), frozenset(eos)
