"""Probe a new target model with a few tokens: find its parts, and check that token trees run right on it.

Models that ignore explicit positions or a 4-D mask do not fail; they compute other numbers. So the probe runs a small
tree and compares its last branch with the same text, run plainly by the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clover.errors import UserError, one_line
from clover.target.cached_model import CachedModel
from clover.target.loading import FAILURES
from clover.target.protocol import HiddenStates
from clover.target.structure import cache_of
from clover.target.support import layer_windows, set_windows
from clover.target.windows import Windows
from clover.tree import TokenTree

TEXT = 4  # tokens of plain text before the tree
_PARENTS = (-1, 0, 0, 0, 3)  # root, three children, and a child of the last one
PATH = [0, 3, 4]
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class PlainRun:
    """One plain run of the model, and the cache that it filled.

    `tokens` Long [1, 9]: four of text and five of a tree. `text` Long [1, 7]: the text and the path 0, 3, 4 through the
    tree; `hidden` [1, 7, H] and `logits` [1, 7, V] belong to it.
    """

    tokens: Tensor
    text: Tensor
    hidden: Tensor
    logits: Tensor
    cache: Any


def run_plainly(target: CachedModel) -> PlainRun:
    """Run text and path; UserError if the model cannot, or sees less than the probe needs."""
    for layer, (kind, window) in enumerate(layer_windows(target.config)):
        if window < TEXT + len(PATH):
            raise UserError(
                f"{target.name}: layer {layer} is of the type {kind} and sees only {window} tokens"
            )
    count, rows = TEXT + len(_PARENTS), target.embedding_weight.shape[0]
    tokens = (torch.arange(1, count + 1, device=target.device) * rows // (count + 1))[None]
    text = torch.cat([tokens[:, :TEXT], tokens[:, TEXT:][:, PATH]], dim=1)
    try:
        output: Any = target.base(input_ids=text, use_cache=True)
        logits = target.running(input_ids=text, use_cache=False).logits
    except Exception as error:
        raise UserError(f"{target.name} cannot run a short text: {one_line(error)}") from error
    unusable = logits.isnan() | logits.isposinf()
    if not bool(output.last_hidden_state.isfinite().all()) or bool(unusable.any()):
        raise UserError(
            f"{target.name}: a few tokens already give values that are not finite: {_why_not_finite(target)}"
        )
    return PlainRun(tokens, text, output.last_hidden_state, logits, cache_of(output))


def _why_not_finite(target: CachedModel) -> str:
    weights = target.model.state_dict().items()
    damaged = next((name for name, weight in weights if bool(weight.isnan().any())), None)
    if damaged is not None:
        return f"its weight {damaged} has NaN values; the file is damaged"
    if target.dtype == torch.float16:
        return "the largest float16 is 65,504; choose the dtype bfloat16 or float32 (--dtype bfloat16)"
    if endless := next((name for name, weight in weights if bool(weight.isinf().any())), None):
        return f"its weight {endless} has infinite values; the file is damaged"
    return "its activations leave the range of its dtype"


def check_tree(target: CachedModel, plain: PlainRun) -> None:
    """Raise UserError unless ``target`` computes the model's own logits, for plain text and for the nodes of a tree."""
    name = f"{target.name} ({type(target.model).__name__})"
    if not _close(target.logits(plain.hidden), plain.logits, target):
        raise UserError(f"{name}: its logits are not the lm_head of its last hidden state")
    try:
        nodes = run_tree(target, plain)
    except Exception as error:
        raise UserError(f"{target.name} cannot run a token tree: {one_line(error)}") from error
    if not _close(target.final_norm(nodes.draft_hidden_states), nodes.hidden, target):
        raise UserError(f"{name}: its last hidden state does not come from the norm after its layers")
    if not _close(nodes.hidden[:, PATH], plain.hidden[:, TEXT:], target):
        raise UserError(
            f"{name} runs a token tree wrong: it does not follow explicit positions and a 4-D attention mask"
        )


def windows_hold(target: CachedModel, plain: PlainRun) -> bool:
    """Return True if the layers have windows, and a tree respects them as plain text does.

    The few tokens are shorter than any window, so both run with windows of three tokens. The result is False if the
    model does not read its windows in every forward, or expects other masks: then texts must stay inside the windows.
    """
    if not Windows.of(target.config).sizes:
        return False
    config: Any = target.base.config
    try:
        with _short_windows(config, 3):
            target.windows = Windows.of(config)
            expected = target.base(input_ids=plain.text, use_cache=False).last_hidden_state
            found = run_tree(target, plain).hidden
    except FAILURES:  # the model expects other masks
        return False
    finally:
        target.windows = Windows()
    return _close(found[:, PATH], expected[:, TEXT:], target)


@contextmanager
def _short_windows(config: Any, size: int) -> Iterator[None]:
    """Set all windows of a configuration to this size inside a ``with`` block."""
    before = set_windows(config, size)
    try:
        yield
    finally:
        for field, value in before.items():
            setattr(config, field, value)


def run_tree(target: CachedModel, plain: PlainRun) -> HiddenStates:
    """Run the text, then the tree, and return the tree's hidden states [1, 5, H], after and before the final norm."""
    tree = TokenTree.from_parents(plain.tokens[:, TEXT:], torch.tensor([_PARENTS], device=target.device))
    cache = target.new_cache(1, TEXT)
    cache.begin(TEXT)
    target.forward(plain.tokens[:, :TEXT], cache.positions(TEXT), cache)
    cache.commit([TEXT])
    cache.begin(len(_PARENTS))
    mask = cache.attention_mask(tree.ancestor_mask)
    return target.forward(tree.tokens, tree.depths + TEXT, cache, mask, "pre_norm")


def _close(actual: Tensor, expected: Tensor, target: CachedModel) -> bool:
    if actual.shape != expected.shape:
        return False
    base: Any = target.base
    rounds_more = base.config._attn_implementation == "eager"  # its softmax is always float32
    tolerance = max(_TOLERANCE[actual.dtype], _TOLERANCE[torch.float32] if rounds_more else 0.0)
    if target.copied is not None:  # int8 may round as coarsely as the narrowest dtype
        tolerance = max(_TOLERANCE.values())
    actual, expected = actual.to("cpu", torch.float64), expected.to("cpu", torch.float64)
    masked = expected.isneginf() & actual.isneginf()  # tokens that a bias of the lm_head excludes
    actual, expected = (values.masked_fill(masked, 0.0) for values in (actual, expected))
    return bool((actual - expected).norm() <= tolerance * expected.norm())
