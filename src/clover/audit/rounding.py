"""The model's own logits along a text, in shapes of the forward that round differently; the engine has no part in it.

The same text is run by the unpatched model as a whole (the reference), in a batch, beside branches of a tree, and token
by token and in short runs on transformers' own cache; and as a whole by the copy that the engine runs. What differs
between the former is rounding. The copy must not differ by much more (`clover.audit.judge.Rounding`).

Shapes: n new tokens, T tokens of the text, K shapes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clover.target import TargetModel
from clover.target.structure import cache_argument, cache_of

MARGIN = 16  # tokens that a text may be longer in the other shapes
_ROWS, _MORE = 3, 7  # of the batch, and tokens after the text there
_BRANCHES = 12  # nodes after half of the text
_RUN, _RUN_ROWS = 5, 4  # tokens of a run on the cache, and rows of that batch


@torch.inference_mode()
def reference_logits(target: TargetModel, texts: Tensor, new: int) -> Tensor:
    """Return the unpatched model's logits [B, n, V] of the last n tokens of texts Long [B, T], in one forward."""
    model: Any = target.model
    return model(input_ids=texts[:, :-1], use_cache=False, logits_to_keep=new).logits[:, -new:]


@torch.inference_mode()
def other_shapes(target: TargetModel, text: Sequence[int], new: int, cached: bool) -> Iterator[Tensor]:
    """Yield the same logits [n, V] of one text in each other shape; without `cached` only the cheap ones.

    The first is that of the engine's copy, all others are of the unpatched model.
    """
    tokens = torch.tensor([text[:-1]], device=target.device)
    base: Any = target.base
    yield target.logits(base(input_ids=tokens, use_cache=False).last_hidden_state[0, -new:])
    longer = torch.cat((tokens, tokens[:, :_MORE]), 1).expand(_ROWS, -1)
    kept = longer.shape[1] - tokens.shape[1] + new
    model: Any = target.model
    yield model(input_ids=longer, use_cache=False, logits_to_keep=kept).logits[0, -kept:][:new]
    yield _with_branches(target, tokens, new)
    if cached:
        yield _in_runs(model, tokens, new, 1, 1)
        yield _in_runs(model, tokens, new, _RUN, _RUN_ROWS)


def _with_branches(target: TargetModel, tokens: Tensor, new: int) -> Tensor:
    """Run it with nodes after it that see its beginning but not each other, by an explicit mask and positions."""
    model: Any = target.model
    length = tokens.shape[1]
    branches = tokens[:, torch.arange(_BRANCHES) % length]
    size, kept = length + _BRANCHES, new + _BRANCHES
    mask = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
    mask[length:, length:] = torch.eye(_BRANCHES, dtype=torch.bool, device=tokens.device)
    mask[length:, length // 2 : length] = False
    positions = torch.arange(size, device=tokens.device)
    positions[length:] = length // 2
    places, added = positions[None], torch.where(mask, 0.0, float("-inf")).to(target.dtype)[None, None]
    seen = {"attention_mask": target.windows.cut(added, places, places), "position_ids": places}
    whole = torch.cat((tokens, branches), 1)
    return model(input_ids=whole, **seen, use_cache=False, logits_to_keep=kept).logits[0, -kept:][:new]


def _in_runs(model: Any, tokens: Tensor, new: int, size: int, rows: int) -> Tensor:
    """Run it on transformers' own cache, `size` tokens at a time."""
    tokens, start = tokens.expand(rows, -1), tokens.shape[1] - new
    name, cache, parts = cache_argument(model), None, []
    runs = tokens[:, start:].split(size, dim=1)
    for run in [tokens[:, :start], *runs] if start else runs:
        output = model(input_ids=run, use_cache=True, logits_to_keep=size, **{name: cache})
        cache = cache_of(output)
        parts.append(output.logits[0])
    return torch.cat(parts)[-new:]
