"""A look at a new target model on eight tokens: what it is made of, and whether a token tree runs right on it.

Families that ignore explicit positions or a 4-D mask do not fail, they give other numbers. So the probe runs a small
tree and compares the node at the end of its last branch with the same text run plainly by the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clover.errors import UserError, one_line
from clover.target.structure import KVShape, find_final_norm, kv_shape
from clover.target.support import windows

if TYPE_CHECKING:
    from clover.target.model import TargetModel

_TEXT = 4  # tokens of plain text before the tree
_PARENTS = (-1, 0, 0, 0, 3)  # root, three children, and a child of the last one
_PATH = (0, 3, 4)
_LENGTH = _TEXT + len(_PATH)
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Probe:
    """What one plain run of the model shows.

    Attributes:
        text: Long [1, 4], tree: Long [1, 5], the tokens used.
        hidden: [1, 7, H] of the text and the path 0, 3, 4 through the tree, after the final norm.
        logits: [1, 7, V] by the model itself.
        final_norm, kv_shape: of the model.
    """

    text: Tensor
    tree: Tensor
    hidden: Tensor
    logits: Tensor
    final_norm: nn.Module
    kv_shape: KVShape

    @classmethod
    def from_model(cls, target: TargetModel) -> Probe:
        """Run text and path plainly; UserError if the model cannot be taken apart."""
        ids = _token_ids(target)
        text, tree = ids[:, :_TEXT], ids[:, _TEXT:]
        plain = torch.cat([text, tree[:, list(_PATH)]], dim=1)
        outputs: list[Any] = []

        def run() -> Tensor:
            outputs.append(target.base(input_ids=plain, use_cache=True))
            return outputs[0].last_hidden_state

        try:
            final_norm = find_final_norm(target.base, run, target.name)
            logits = target.model(input_ids=plain, use_cache=False).logits
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{target.name} cannot run a short text: {one_line(error)}") from error
        shape = kv_shape(outputs[0].past_key_values, target.config)
        return cls(text, tree, outputs[0].last_hidden_state, logits, final_norm, shape)


def probe_model(target: TargetModel, probe: Probe) -> None:
    """UserError unless ``target`` gives the model's own logits, on plain text and at the nodes of a tree."""
    _check_window(target)
    if not _close(target.logits(probe.hidden), probe.logits):
        raise UserError(
            f"{target.name} ({type(target.model).__name__}): its logits are not the lm_head of its last hidden state"
        )
    try:
        nodes = _run_tree(target, probe)
    except Exception as error:
        raise UserError(f"{target.name} cannot run a token tree: {one_line(error)}") from error
    if not _close(nodes[:, list(_PATH)], probe.hidden[:, _TEXT:]):
        raise UserError(
            f"{target.name} ({type(target.model).__name__}) runs a token tree wrong: it does not follow explicit "
            "positions and a 4-D attention mask"
        )


def _run_tree(target: TargetModel, probe: Probe) -> Tensor:
    """Hidden states [1, 5, H] of the tree's nodes after the text."""
    cache, device = target.new_cache(1, _TEXT), target.device
    cache.begin(_TEXT)
    target.forward(probe.text, torch.arange(_TEXT, device=device)[None], cache)
    cache.commit([_TEXT])
    depths = [0]
    mask = torch.eye(len(_PARENTS), dtype=torch.bool, device=device)
    for node, parent in enumerate(_PARENTS[1:], start=1):
        depths.append(depths[parent] + 1)
        mask[node] |= mask[parent]
    cache.begin(len(_PARENTS))
    positions = torch.tensor([depths], device=device) + _TEXT
    return target.forward(probe.tree, positions, cache, cache.attention_mask(mask[None])).hidden


def _token_ids(target: TargetModel) -> Tensor:
    count = _TEXT + len(_PARENTS)
    rows = target.embedding_weight.shape[0]
    return (torch.arange(1, count + 1, device=target.device) * rows // (count + 1))[None]


def _check_window(target: TargetModel) -> None:
    for layer, (kind, window) in enumerate(windows(target.config)):
        if window < _LENGTH:
            raise UserError(
                f"{target.name}: layer {layer} is of the type {kind} and sees only {window} tokens"
            )


def _close(actual: Tensor, expected: Tensor) -> bool:
    if actual.shape != expected.shape:
        return False
    tolerance = _TOLERANCE[actual.dtype]
    actual, expected = actual.to("cpu", torch.float64), expected.to("cpu", torch.float64)
    return bool((actual - expected).norm() <= tolerance * expected.norm())
