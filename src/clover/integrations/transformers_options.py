"""What transformers' `generate` prepared, in the engine's words; whatever has no equal there is an error.

The logits processors and stopping criteria are read themselves, not the options they came from: none can be missed.

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

# These processors have a field of SamplingParams, which does the same, and an attribute; in the Sampler's order.
_FIELDS: dict[type, tuple[str, str]] = {
    hf.RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
    hf.TemperatureLogitsWarper: ("temperature", "temperature"),
    hf.TopKLogitsWarper: ("top_k", "top_k"),
    hf.TopPLogitsWarper: ("top_p", "top_p"),
    hf.MinPLogitsWarper: ("min_p", "min_p"),
}
# These, too, look at a text and its scores alone.
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
    """Return the error for an option without an equal."""
    return UserError(f"speculative decoding cannot honour {what}; leave it out, or leave custom_generate out")


def check_generate_options(config: hf.GenerationConfig, arguments: Mapping[str, Any]) -> None:
    """Raise UserError for a generation mode, an option or an argument of `generate` that cannot be honoured."""
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
    """Raise UserError for a model that `generate` would run in another way than its class does.

    PEFT's prompt tuning, p-tuning and prefix tuning replace the method that prepares inputs, to put virtual tokens
    before them; its `adapter_names` choose an adapter for each row, and rows leave the batch when they end.
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
    """Return the tokens of each row of input_ids Long [B, T] without its padding, where the mask [B, T] is 0.

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


@dataclass(frozen=True)
class Ends:
    """Where `generate` ends rows: at `max_length` columns, and after tokens `eos` in columns from `prompt` on."""

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
    """The processors as `generate` runs them, on texts of one row; `padding` Long [1, …] is what they see before it.

    `generate` shows them no text that has ended, and drafted tokens may go on after the end. The scores of such texts
    stay as they are.
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
    """Return fields of each row's SamplingParams, without the seed, that do what the processors do.

    Where no fields do, the processors themselves are run at every node of a tree: those known here, and the classes
    `own`, because they look at nothing but a text and its scores. `padding` is that of each row's prompt, Long [1,
    …].
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
    """Return the same processor for one row alone, if it distinguishes the rows of a batch."""
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
    """Return fields of SamplingParams that do what all the processors do, in the same order; None if there are none."""
    known, options = list(_FIELDS), {"temperature": 1.0} if do_sample else {}
    places = [known.index(type(one)) if type(one) in known else -1 for one in processors]
    if places != sorted(set(places)) or -1 in places:
        return None
    for processor in processors:
        ignored = getattr(processor, "prompt_ignore_length", None)
        penalty = isinstance(processor, hf.RepetitionPenaltyLogitsProcessor)
        if penalty and ignored is None and any(padding):
            return None  # it sees the padding, which the engine has not
        if ignored is not None and (isinstance(ignored, int) or ignored.tolist() != list(padding)):
            return None
        if (
            getattr(processor, "min_tokens_to_keep", 1) != 1
            or getattr(processor, "filter_value", -inf) != -inf
        ):
            return None
        name, attribute = _FIELDS[type(processor)]
        if do_sample or name == "repetition_penalty":  # no warper changes which token is the likeliest
            options[name] = getattr(processor, attribute)
    return options


def read_ends(criteria: Iterable[hf.StoppingCriteria], prompt: int) -> Ends:
    """Return the ends of rows whose prompts, padding included, are `prompt` columns long."""
    lengths, eos = [], set[int]()
    for criterion in criteria:
        if isinstance(criterion, hf.MaxLengthCriteria):
            lengths.append(criterion.max_length)
        elif isinstance(criterion, hf.EosTokenCriteria):
            eos.update(criterion.eos_token_id.tolist())
    return Ends(prompt, min(lengths), frozenset(eos))
