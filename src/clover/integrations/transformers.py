"""Speculative decoding as one more argument of transformers' own `generate`.

>>> fast = clover.speculative("path/to/draft")                                          # doctest: +SKIP
>>> model.generate(**inputs, custom_generate=fast, max_new_tokens=64, do_sample=True)   # doctest: +SKIP

`generate` prepares prompts, logits processors and stopping criteria as always; the engine runs in place of its loop.

Shapes: B rows of the batch, T columns of the (left-padded) prompts.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from clover.api import make_engine, what_drafts
from clover.drafts import DraftModel
from clover.engine import Engine, Request, StepEvent
from clover.errors import UserError
from clover.integrations.transformers_options import Ending, check_options, read_prompts, sampling_options
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import Tree


def speculative(
    draft: str | os.PathLike[str] | DraftModel,
    *,
    tree: str | Tree | None = None,
    tokenizer: Any | None = None,
) -> Speculative:
    """Make the `custom_generate` argument of `model.generate` that decodes with a draft.

    The model must use SDPA attention and be in evaluation mode; its weights, layers and methods are left alone. What
    is set up for it is kept as long as the model is. Seeds come from PyTorch's generator, so that `torch.manual_seed`
    reproduces a sampled run. With `return_dict_in_generate` only sequences are returned.

    Args:
        draft: directory, hub name, or a draft already in the model's dtype and on its device.
        tree: as in `clover.load`, "auto" by default, or an object of `clover.tree`.
        tokenizer: the model's, needed for `stop_strings` only: transformers does not hand on its own argument.

    Raises:
        UserError: the tree cannot be read; from `generate`, before anything is generated, a model or draft does
            not fit or an option cannot be honoured, such as beam search, processors of one's own, or returned scores.
    """
    return Speculative(draft, what_drafts("auto", tree), tokenizer)


@dataclass(frozen=True, eq=False)
class Speculative:
    """A decoding loop for `generate`; made by `speculative`."""

    draft: str | os.PathLike[str] | DraftModel
    wanted: str | Tree
    tokenizer: Any | None

    def __call__(
        self,
        model: hf.PreTrainedModel,
        input_ids: Tensor,
        logits_processor: hf.LogitsProcessorList,
        stopping_criteria: hf.StoppingCriteriaList,
        generation_config: hf.GenerationConfig,
        stop_strings: str | list[str] | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decode what `generate` has prepared, Long [B, T], where the attention mask hides padding on the left.

        Returns Long [B, T + new tokens]: prompts and new tokens, padded on the right.
        """
        arguments = {**_arguments_kept_back(), **model_kwargs}
        streamer, tokenizer = arguments.pop("streamer", None), arguments.pop("tokenizer", self.tokenizer)
        check_options(generation_config, arguments)
        prompts = read_prompts(input_ids, arguments.get("attention_mask"), arguments.get("position_ids"))
        ending = Ending.read([*stopping_criteria, *_stop_criteria(stop_strings, tokenizer)], len(prompts))
        padding = [input_ids.shape[1] - len(prompt) for prompt in prompts]
        options = sampling_options(logits_processor, padding, generation_config.do_sample)
        engine = _engine(model, self)
        requests = _requests(engine.target, prompts, ending, ending.max_length - input_ids.shape[1], options)
        batch = _Batch(prompts, ending, _pad_token(generation_config))
        with closing(engine.run(requests)) as events:
            batch.take(events, streamer)
        sequences = torch.cat([input_ids, batch.columns().to(input_ids.device)], dim=1)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
        return sequences


def _stop_criteria(stop_strings: str | list[str] | None, tokenizer: Any) -> list[hf.StopStringCriteria]:
    if stop_strings is None:
        return []
    if tokenizer is None:
        raise UserError("stop_strings need the tokenizer: clover.speculative(draft, tokenizer=...)")
    return [hf.StopStringCriteria(tokenizer, stop_strings)]


def _arguments_kept_back() -> dict[str, Any]:
    """Arguments that `generate` takes but does not hand to a callable, read off its frame: a streamer must be ended."""
    frame = sys._getframe(2)
    if frame.f_code is not inspect.unwrap(vars(hf.GenerationMixin)["generate"]).__code__:
        return {}
    return {name: frame.f_locals.get(name) for name in ("streamer", "assistant_model", "synced_gpus")}


def _pad_token(config: hf.GenerationConfig) -> int:
    pad = getattr(config, "_pad_token_tensor", None)
    return 0 if pad is None else int(pad)  # without an end-of-sequence token all rows are equally long


def _requests(
    target: TargetModel, prompts: Sequence[tuple[int, ...]], ending: Ending, new: int, options: dict[str, Any]
) -> list[Request]:
    needed = max(map(len, prompts)) + new
    if needed > target.context_length:
        raise UserError(
            f"prompt and new tokens may come to {needed}, but the context of {target.name} is "
            f"{target.context_length}; lower max_new_tokens or max_length by {needed - target.context_length}"
        )
    sampled = "temperature" in options
    seeds = torch.randint(2**63 - 1, (len(prompts),)).tolist() if sampled else [0] * len(prompts)
    return [
        Request(prompt, new, SamplingParams(**options, seed=seed), eos=tuple(ending.eos))
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]


@dataclass
class _Engines:
    """What was set up for one model, in the model's `__dict__`; neither copied nor saved with it."""

    state: tuple[Any, ...] | None = None
    target: TargetModel | None = None
    engines: dict[tuple[Any, ...], Engine] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[_Engines], tuple[()]]:
        return _Engines, ()


def _engine(model: hf.PreTrainedModel, asked: Speculative) -> Engine:
    """The model's engine with this draft; set up once, unless the model is moved or rebuilt."""
    if any(module.training for module in model.modules()):
        raise UserError("the model is in training mode; call model.eval() first")
    kept: _Engines = model.__dict__.setdefault("_clover_engines", _Engines())
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    place = None if weight is None else (weight.device, weight.dtype)
    state = (head, place, model.config._attn_implementation)
    if kept.target is None or kept.state != state:
        kept.target, kept.state, kept.engines = _wrapped(model), state, {}
    draft = asked.draft
    if isinstance(draft, DraftModel):
        _bind(draft, kept.target)
    else:
        draft = os.fspath(draft)
    key = draft, asked.wanted
    if key not in kept.engines:
        kept.engines[key] = make_engine(kept.target, draft, asked.wanted)
    return kept.engines[key]


def _bind(draft: DraftModel, target: TargetModel) -> None:
    """Bind a draft to the target; it may have served another one since the last call."""
    if (draft.device, draft.dtype) != (target.device, target.dtype):
        raise UserError(
            f"the draft is {draft.dtype} on {draft.device}, the model {target.dtype} on {target.device}; "
            "move the draft with draft.to(...)"
        )
    if not draft.is_bound_to(target):
        draft.bind(target)


def _wrapped(model: hf.PreTrainedModel) -> TargetModel:
    """The model as a target, without freezing it for its owner."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        return TargetModel(model)
    finally:
        for weight in trained:
            weight.requires_grad_(True)


class _Batch:
    """The new tokens of every row, up to where the row ends."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], ending: Ending, pad: int):
        self.prompts, self.ending, self.pad = prompts, ending, pad
        self.rows: list[list[int]] = [[] for _ in prompts]
        self.ended = [False] * len(prompts)

    def take(self, events: Iterator[StepEvent], streamer: Any | None) -> None:
        """Collect tokens until every row has ended; a streamer gets them column by column, each Long [B]."""
        streamed = 0
        for event in events:
            self._extend(event)
            if streamer is not None:
                # A column is complete when no row adds to it any more.
                ends = [len(row) for row, ended in zip(self.rows, self.ended, strict=True) if not ended]
                complete = min(ends, default=max(map(len, self.rows)))
                for column in self.columns()[:, streamed:complete].unbind(1):
                    streamer.put(column)
                streamed = complete
            if all(self.ended):
                break
        if streamer is not None:
            streamer.end()

    def columns(self) -> Tensor:
        """The new tokens, Long [B, longest row], padded on the right."""
        longest = max(map(len, self.rows))
        padded = [[*row, *[self.pad] * (longest - len(row))] for row in self.rows]
        return torch.tensor(padded, dtype=torch.long, device="cpu")

    def _extend(self, event: StepEvent) -> None:
        row = event.index
        for token in event.tokens:
            if not self.ended[row]:
                self.rows[row].append(token)
                self.ended[row] = token in self.ending.eos or self._stopped(row)
        self.ended[row] |= event.generation is not None

    def _stopped(self, row: int) -> bool:
        text = torch.tensor([[*self.prompts[row], *self.rows[row]]], device="cpu")
        return any(bool(criterion(text, None)) for criterion in self.ending.criteria)  # type: ignore[arg-type]
