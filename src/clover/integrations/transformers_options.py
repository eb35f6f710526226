"""Translate what transformers' `generate` prepared into the engine's options; an unsupported feature is an error.

Logits processors and stopping criteria are read, not the options behind them, so that no option is missed.

Shapes: B rows of the batch, T columns of the (left-padded) prompts, P texts of one length, V vocabulary.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode

from clover.errors import UserError

# Processors that a field of SamplingParams replaces: the field, and the processor's attribute, in the Sampler's order.
_FIELDS: dict[type, tuple[str, str]] = {
    hf.RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
    hf.TemperatureLogitsWarper: ("temperature", "temperature"),
    hf.TopKLogitsWarper: ("top_k", "top_k"),
    hf.TopPLogitsWarper: ("top_p", "top_p"),
    hf.MinPLogitsWarper: ("min_p", "min_p"),
}
# Further processors that depend only on a text and its scores.
_OF_TEXT = (
    *(hf.NoRepeatNGramLogitsProcessor, hf.MinLengthLogitsProcessor, hf.MinNewTokensLengthLogitsProcessor),
    *(hf.ForcedBOSTokenLogitsProcessor, hf.ForcedEOSTokenLogitsProcessor, hf.ExponentialDecayLengthPenalty),
    *(hf.SuppressTokensAtBeginLogitsProcessor, hf.PrefixConstrainedLogitsProcessor),
    *(hf.TypicalLogitsWarper, hf.EpsilonLogitsWarper, hf.EtaLogitsWarper, hf.TopHLogitsWarper),
    *(hf.SequenceBiasLogitsProcessor, hf.NoBadWordsLogitsProcessor, hf.SuppressTokensLogitsProcessor),
    *(hf.LogitNormalization, hf.InfNanRemoveLogitsProcessor),
)
_NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_CACHES = ("cache", "past_key_values")  # since transformers 5.24, and before
_PREPARED = ("attention_mask", "position_ids", *_CACHES, "use_cache", "logits_to_keep")
_PREPARED += ("cache_position",)  # of older releases
_IMAGES = "mm_encoder_outputs"  # encoded images; empty where a prompt has none


def refused(what: str) -> UserError:
    """Return the error for an unsupported option."""
    return UserError(f"speculative decoding cannot honour {what}; leave it out, or leave custom_generate out")


def check_generate_options(config: hf.GenerationConfig, arguments: Mapping[str, Any]) -> None:
    """Raise UserError for a generation mode, an option or an argument of `generate` that is not supported."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise refused(f"the generation mode {mode.value}")
    for name in (*_NOT_RETURNED, "cache_implementation", "prefill_chunk_size"):
        if getattr(config, name, None):
            raise refused(name)
    if config.use_cache is False:
        raise refused("use_cache=False")
    for name in _CACHES:
        cache = arguments.get(name)
        if cache is not None and (cache.get_seq_length() or getattr(cache, "_is_user_defined", False)):
            raise refused(name)
    if arguments.get(_IMAGES):
        raise refused("images")
    for name, value in arguments.items():
        if name not in (*_PREPARED, _IMAGES) and value is not None and value is not False:
            raise refused(name)


def check_model(model: hf.PreTrainedModel, rows: int) -> None:
    """Raise UserError for a model that `generate` runs in another way than the model's class.

    PEFT's prompt tuning, p-tuning and prefix tuning replace the method that prepares inputs, to insert virtual tokens.
    PEFT's `adapter_names` choose an adapter for each row, but here rows leave the batch when they end.
    """
    name = "prepare_inputs_for_generation"
    owner = next((kind for kind in type(model).__mro__ if name in vars(kind)), hf.PreTrainedModel)
    if name in vars(model) or not owner.__module__.startswith(("transformers.", "transformers_modules.")):
        raise refused(f"a {name} that is not the model's class's own, such as of PEFT's prompt tuning")
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    if rows > 1 and any("adapter_names" in getattr(hook, "keywords", {}) for hook in hooks):
        raise UserError(
            "adapter_names choose an adapter for each row; call generate for each adapter on its own"
        )


def read_prompts(input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[tuple[int, ...]]:
    """Return the tokens of each row of input_ids Long [B, T], without padding, which has 0 in the mask [B, T].

    UserError for positions Long [B, T] that do not match the mask, and for padding that is not on the left.
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


@dataclass(frozen=True)
class Ends:
    """The ends of rows in `generate`: at `max_length` columns, or after an `eos` token in columns from `prompt` on."""

    prompt: int
    max_length: int
    eos: frozenset[int] = frozenset()

    def open(self, texts: Tensor) -> Tensor:
        """Return which texts Long [P, columns] have not ended, Bool [P]."""
        eos = torch.tensor([*self.eos], dtype=torch.long, device=texts.device)
        ended = torch.isin(texts[:, self.prompt :], eos).any(1)
        return ~ended & (texts.shape[1] < self.max_length)


@dataclass(frozen=True, eq=False)
class _RowProcessors:
    """The processors as `generate` runs them, on texts of one row, after its `padding` Long [1, …].

    `generate` never passes them a text that has ended, but drafted tokens may continue after the end. The scores of
    such texts are returned unchanged.
    """

    processors: hf.LogitsProcessorList
    padding: Tensor
    ends: Ends

    def __call__(self, texts: Tensor, scores: Tensor) -> Tensor:
        run: Any = self.processors
        columns = torch.cat([self.padding.expand(len(texts), -1), texts], dim=1)
        going_on = self.ends.open(columns)
        if not bool(going_on.any()):
            return scores
        return scores.index_put((going_on,), run(columns[going_on], scores[going_on]).to(scores.dtype))


def row_options(
    processors: Sequence[hf.LogitsProcessor],
    padding: Sequence[Tensor],
    do_sample: bool | None,
    ends: Ends,
    own: Collection[type] = (),
) -> list[dict[str, Any]]:
    """Return fields of each row's SamplingParams, without the seed, that are equivalent to the processors.

    If no fields are, the processors themselves run at every node of a tree: those listed in this file, and the classes
    `own`, because they depend only on a text and its scores. `padding` is the padding of each row, Long [1, …].
    """
    options = _fields(processors, [part.shape[1] for part in padding], do_sample)
    if options is not None:
        return [options] * len(padding)
    for processor in processors:
        name = type(processor).__name__
        if type(processor) not in (*_FIELDS, *_OF_TEXT, *own):
            hint = f" (if it looks at a text and its scores alone: clover.speculative(draft, processors=[{name}]))"
            theirs = type(processor).__module__.startswith("transformers.")
            raise refused(f"the logits processor {name}{'' if theirs else hint}")
    options = {"temperature": 1.0} if do_sample else {}
    rows = (hf.LogitsProcessorList(_of_row(one, row) for one in processors) for row in range(len(padding)))
    return [options | {"process": _RowProcessors(*row, ends)} for row in zip(rows, padding, strict=True)]


def _of_row(processor: Any, row: int) -> hf.LogitsProcessor:
    """Return the processor for a single row, if it distinguishes the rows of a batch; otherwise return it unchanged."""
    match processor:
        case hf.PrefixConstrainedLogitsProcessor():
            allowed = processor._prefix_allowed_tokens_fn
            return hf.PrefixConstrainedLogitsProcessor(lambda _, text: allowed(row, text), 1)
        case hf.RepetitionPenaltyLogitsProcessor(prompt_ignore_length=Tensor() as ignored):
            return hf.RepetitionPenaltyLogitsProcessor(processor.penalty, int(ignored[row]))
    return processor


def _fields(
    processors: Sequence[Any], padding: Sequence[int], do_sample: bool | None
) -> dict[str, float] | None:
    """Return fields of SamplingParams that are equivalent to all processors, in their order; None if there are none."""
    known, options = list(_FIELDS), {"temperature": 1.0} if do_sample else {}
    places = [known.index(type(one)) if type(one) in known else -1 for one in processors]
    if places != sorted(set(places)) or -1 in places:
        return None
    for processor in processors:
        ignored = getattr(processor, "prompt_ignore_length", None)
        penalty = isinstance(processor, hf.RepetitionPenaltyLogitsProcessor)
        if penalty and ignored is None and any(padding):
            return None  # because it reads the padding, which the engine does not have
        if ignored is not None and (isinstance(ignored, int) or ignored.tolist() != list(padding)):
            return None
        if (
            getattr(processor, "min_tokens_to_keep", 1) != 1
            or getattr(processor, "filter_value", -inf) != -inf
        ):
            return None
        name, attribute = _FIELDS[type(processor)]
        if do_sample or name == "repetition_penalty":  # because no warper changes the most probable token
            options[name] = getattr(processor, attribute)
    return options


def read_ends(criteria: Iterable[hf.StoppingCriteria], prompt: int) -> Ends:
    """Return the ends of rows, for prompts of `prompt` columns, padding included."""
    lengths, eos = [], set[int]()
    for criterion in criteria:
        if isinstance(criterion, hf.MaxLengthCriteria):
            lengths.append(criterion.max_length)
        elif isinstance(criterion, hf.EosTokenCriteria):
            eos.update(criterion.eos_token_id.tolist())
    return Ends(prompt, min(lengths), frozenset(eos))
