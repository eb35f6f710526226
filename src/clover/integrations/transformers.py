"""Speculative decoding through an argument of transformers' own `generate`.

>>> fast = clover.speculative("path/to/draft")                                          # doctest: +SKIP
>>> model.generate(**inputs, custom_generate=fast, max_new_tokens=64, do_sample=True)   # doctest: +SKIP

`generate` prepares prompts, logits processors and stopping criteria as usual; the engine replaces its decoding loop.

Shapes: B rows of the batch, T columns of the (left-padded) prompts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from clover import packaged
from clover.api import make_engine
from clover.cpu import versions
from clover.drafting import Tree, parse_tree
from clover.drafts import DraftModel
from clover.engine import Engine, Request, Scheduler
from clover.errors import UserError, names_replacements
from clover.integrations.transformers_options import (
    Ends,
    check_generate_options,
    check_model,
    read_ends,
    read_prompts,
    row_options,
)
from clover.sampling import SamplingParams
from clover.target import Target, TargetModel, TargetWeights

_KEPT = 2  # engines per model


@names_replacements
def speculative(
    draft: str | os.PathLike[str] | DraftModel | None = None,
    *,
    tree: str | Tree = "auto",
    tokenizer: Any | None = None,
    streamer: BaseStreamer | None = None,
    processors: Iterable[type] = (),
) -> Speculative:
    """Make the `custom_generate` argument of `model.generate` that decodes with a draft.

    The model must use SDPA attention, or eager if its class has no SDPA, and be in evaluation mode. Its weights, layers
    and methods are not changed. The engines for the last two drafts and trees are kept with the model. Seeds come from
    PyTorch's generator, so `torch.manual_seed` reproduces a sampled run. With `return_dict_in_generate` only sequences
    are returned. UserError if the tree cannot be parsed. `generate` raises UserError, before it generates anything, if
    a model or draft does not fit, or an option is not supported, such as beam search or returned scores.

    Args:
        draft: directory, hub name, or a draft already in the model's dtype and on its device; not needed if the tree
            needs no draft, or the package has one for the model.
        tree: the tree to draft, as in `clover.load`; tree="lookup" copies from the text and needs no draft.
        tokenizer: the model's tokenizer, needed only for `stop_strings`.
        streamer: gets the prompts, then the new tokens. transformers does not pass this argument and `tokenizer` on to
            a `custom_generate` function, and neither `assistant_model` and `synced_gpus`, which have no effect.
        processors: your own classes of logits processors, which must depend only on a text and its scores, and keep no
            state between calls, because they also see texts that end in drafted tokens.
    """
    return Speculative(draft, parse_tree(tree), tokenizer, streamer, tuple(processors))


@dataclass(frozen=True, eq=False)
class Speculative:
    """A decoding loop for `generate`; made by `speculative`."""

    draft: str | os.PathLike[str] | DraftModel | None
    tree: Tree
    tokenizer: Any | None
    streamer: BaseStreamer | None
    processors: tuple[type, ...]

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
        """Decode the prompts that `generate` has prepared, Long [B, T]; the attention mask hides padding on the left.

        Returns Long [B, T + new tokens]: prompts and new tokens, padded on the right.
        """
        check_generate_options(generation_config, model_kwargs)
        check_model(model, len(input_ids))
        prompts = read_prompts(
            input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
        )
        criteria = hf.StoppingCriteriaList(
            [*stopping_criteria, *_stop_criteria(stop_strings, self.tokenizer)]
        )
        ends = read_ends(criteria, input_ids.shape[1])
        padding = [
            row[None, : len(row) - len(prompt)] for row, prompt in zip(input_ids, prompts, strict=True)
        ]
        options = row_options(logits_processor, padding, generation_config.do_sample, ends, self.processors)
        engine = _engine(model, self)
        decoding = engine.open(len(prompts))
        for request in _requests(engine.target, prompts, ends, options):
            decoding.add(request)
        batch = _GenerateRows(input_ids, criteria, getattr(generation_config, "_pad_token_tensor", None))
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        batch.decode(decoding, self.streamer)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=batch.sequences)  # type: ignore[arg-type]
        return batch.sequences


def _stop_criteria(stop_strings: str | list[str] | None, tokenizer: Any) -> list[hf.StopStringCriteria]:
    if stop_strings is None:
        return []
    if tokenizer is None:
        raise UserError("stop_strings need the tokenizer: clover.speculative(draft, tokenizer=...)")
    return [hf.StopStringCriteria(tokenizer, stop_strings)]


def _requests(
    target: Target,
    prompts: Sequence[tuple[int, ...]],
    ends: Ends,
    options: Sequence[dict[str, Any]],
) -> list[Request]:
    new = ends.max_length - ends.prompt
    needed = max(map(len, prompts)) + new
    if needed > target.longest_run:
        raise UserError(
            f"prompt and new tokens may come to {needed}, but the {target.run_limit} of {target.name} is "
            f"{target.longest_run}; lower max_new_tokens or max_length by {needed - target.longest_run}"
        )
    sampled = "temperature" in options[0]
    seeds = torch.randint(2**63 - 1, (len(prompts),)).tolist() if sampled else [0] * len(prompts)
    return [
        Request(prompt, new, SamplingParams(**chosen, seed=seed), eos=tuple(ends.eos))
        for prompt, seed, chosen in zip(prompts, seeds, options, strict=True)
    ]


@dataclass
class _Engines:
    """The engines for one model, in the model's `__dict__`; they are neither copied nor saved with it.

    Only the engines used last, by draft and tree, are kept, because each holds a draft in memory.
    """

    state: tuple[Any, ...] | None = None
    target: TargetWeights | None = None
    engines: dict[tuple[Any, ...], Engine] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[_Engines], tuple[()]]:
        return _Engines, ()


def _engine(model: hf.PreTrainedModel, asked: Speculative) -> Engine:
    """Return the model's engine for this draft; it is made once, and again if the model is moved or changed."""
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        part = f" (its part {training}, such as an adapter that was added later)" if training else ""
        raise UserError(f"the model is in training mode{part}; call model.eval() first")
    kept: _Engines = model.__dict__.setdefault("_clover_engines", _Engines())
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    place = (weight.device, weight.dtype) if isinstance(weight, Tensor) else None
    state = (head, place, model.config._attn_implementation, *_contents(model))
    if kept.target is None or kept.state != state:
        kept.target, kept.state, kept.engines = _wrapped(model), state, {}
    draft = asked.draft if asked.tree.needs_draft else None
    key, engines = (draft, asked.tree), kept.engines
    found = engines.pop(key, None)
    if isinstance(draft, DraftModel):
        _bind(draft, kept.target)
    elif asked.tree.needs_draft and found is None:
        draft = packaged.draft_place(draft, kept.target)
    while len(engines) >= _KEPT:
        del engines[next(iter(engines))]
    engines[key] = found or make_engine(kept.target, draft, asked.tree)
    return engines[key]


def _contents(model: hf.PreTrainedModel) -> Iterator[Any]:
    """Yield the parts of the model that the engine copies: modules with their hooks, and the versions of all weights.

    Each call compares them, because an outdated copy of weights would write other texts without an error.
    """
    for module in model.modules():
        yield module, len(module._forward_hooks), len(module._forward_pre_hooks), vars(module).get("forward")
    yield from versions(chain(model.parameters(), model.buffers()))


def _bind(draft: DraftModel, target: TargetWeights) -> None:
    """Bind a draft to the target, because it may have been bound to another one since the last call."""
    if (draft.device, draft.dtype) != (target.device, target.dtype):
        raise UserError(
            f"the draft is {draft.dtype} on {draft.device}, the model {target.dtype} on {target.device}; "
            "move the draft with draft.to(...)"
        )
    if not draft.is_bound_to(target):
        draft.bind(target)


def _wrapped(model: hf.PreTrainedModel) -> TargetWeights:
    """Return the model as a target; the owner's weights keep `requires_grad`."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        return TargetModel(model)
    finally:
        for weight in trained:
            weight.requires_grad_(True)


class _GenerateRows:
    """The batch as in `generate`: all rows up to one column, and which rows have ended.

    Without an end-of-sequence token, rows continue after their end until all rows have ended, as in `generate`.
    """

    def __init__(self, input_ids: Tensor, criteria: hf.StoppingCriteriaList, pad: Tensor | None):
        self.sequences, self._criteria = input_ids, criteria
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._pad = 0 if pad is None else int(pad)
        self._ended = [False] * len(input_ids)
        self._waiting = [deque[int]() for _ in input_ids]  # tokens of each row for later columns

    def decode(self, decoding: Scheduler, streamer: Any | None) -> None:
        """Decode until every row has ended; a streamer gets the new tokens column by column, each Long [B].

        UserError if a row's next token cannot be chosen; the streamer first gets all columns before that token.
        """
        error = ""
        while not all(self._ended) and not error:
            for event in decoding.step():
                self._waiting[event.index].extend(event.tokens)
                error = error or (event.generation.error if event.generation is not None else "")
            while not all(self._ended) and all(
                waiting or self._over(row) for row, waiting in enumerate(self._waiting)
            ):
                column = [
                    self._pad if self._over(row) else self._waiting[row].popleft()
                    for row in range(len(self._ended))
                ]
                self._add(torch.tensor(column, device=self.sequences.device), decoding, streamer)
        if streamer is not None:
            streamer.end()
        if error:
            raise UserError(error)

    def _over(self, row: int) -> bool:
        """Return whether a row gets only padding."""
        return self._pads and self._ended[row]

    def _add(self, column: Tensor, decoding: Scheduler, streamer: Any | None) -> None:
        """Append a column, and call the criteria as `generate` does."""
        self.sequences = torch.cat([self.sequences, column[:, None]], dim=1)
        if streamer is not None:
            streamer.put(column.cpu())
        done: Any = self._criteria(self.sequences, None)  # type: ignore[arg-type]
        for row, ends in enumerate(done.tolist()):
            if ends and not self._ended[row]:
                self._ended[row] = True
                if self._pads:
                    decoding.cancel(row)
