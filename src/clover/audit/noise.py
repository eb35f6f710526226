"""What the model itself says of a text, and how far rounding moves it: nothing of the engine takes part.

The same text is run in shapes that round differently: as a whole by the unpatched model (the reference) and by the copy
that the engine runs, in a batch, beside branches of a tree, and token by token and in short runs on transformers' own
cache. What differs between them is rounding, because they are the same function.

Shapes: n new tokens, T tokens of the text, K shapes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clover.target import TargetModel
from clover.target.structure import cache_argument, cache_of

_ROWS, _MORE = 3, 7  # of the batch, and tokens after the text there
_BRANCHES = 12  # nodes beside the text
_RUN, _RUN_ROWS = 5, 4  # tokens of a run on the cache, and rows of that batch


@torch.inference_mode()
def reference_logits(target: TargetModel, texts: Tensor, new: int) -> Tensor:
    """Logits [B, n, V] of the last n tokens of texts Long [B, T], as the unpatched model says them all at once."""
    model: Any = target.model
    return model(input_ids=texts[:, :-1], use_cache=False, logits_to_keep=new).logits[:, -new:]


@torch.inference_mode()
def other_shapes(target: TargetModel, text: Sequence[int], new: int, cached: bool) -> Iterator[Tensor]:
    """The same logits [n, V] of one text in each other shape; without `cached` only the cheap ones."""
    tokens = torch.tensor([text[:-1]], device=target.device)
    base: Any = target.base
    yield _logits(target, base(input_ids=tokens, use_cache=False), new)
    longer = torch.cat((tokens, tokens[:, :_MORE]), 1).expand(_ROWS, -1)
    yield _logits(target, base(input_ids=longer, use_cache=False), new, tokens.shape[1])
    yield _beside_branches(target, tokens, new)
    if cached:
        yield _in_runs(target, tokens, new, 1, 1)
        yield _in_runs(target, tokens, new, _RUN, _RUN_ROWS)


def _logits(target: TargetModel, output: Any, new: int, end: int | None = None) -> Tensor:
    """Of row 0, for the last n tokens before `end`."""
    return target.logits(output.last_hidden_state[0, :end][-new:])


def _beside_branches(target: TargetModel, tokens: Tensor, new: int) -> Tensor:
    """With nodes after it that see its beginning, each other not, by an explicit mask and explicit positions."""
    length = tokens.shape[1]
    branches = tokens[:, torch.arange(_BRANCHES) % length]
    size = length + _BRANCHES
    mask = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
    mask[length:, length:] = torch.eye(_BRANCHES, dtype=torch.bool, device=tokens.device)
    mask[length:, length // 2 : length] = False
    positions = torch.arange(size, device=tokens.device)
    positions[length:] = length // 2
    added = torch.where(mask, 0.0, float("-inf")).to(target.dtype)[None, None]
    base: Any = target.base
    whole = torch.cat((tokens, branches), 1)
    output = base(input_ids=whole, position_ids=positions[None], attention_mask=added, use_cache=False)
    return _logits(target, output, new, length)


def _in_runs(target: TargetModel, tokens: Tensor, new: int, size: int, rows: int) -> Tensor:
    """On transformers' own cache, so many tokens at a time."""
    base: Any = target.base
    tokens, start = tokens.expand(rows, -1), tokens.shape[1] - new
    name, cache, parts = cache_argument(base), None, []
    for run in (
        [tokens[:, :start], *tokens[:, start:].split(size, dim=1)] if start else tokens.split(size, dim=1)
    ):
        output = base(input_ids=run, use_cache=True, **{name: cache})
        cache = cache_of(output)
        parts.append(output.last_hidden_state[0])
    return target.logits(torch.cat(parts)[-new:])
