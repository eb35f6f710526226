"""Fingerprints of a target's weights, so that files made with one target are not used with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor

from clover.cpu import plain_parts
from clover.target.protocol import TargetWeights

_SAMPLED = 4096  # weights of each tensor, at most twice as many


def weights_fingerprint(target: TargetWeights) -> str:
    """Return a hash (32 hexadecimal digits) of the configuration and of evenly spaced weights as bfloat16.

    It is the same in every dtype but float16, since weights that were rounded twice may differ; int8 weights give
    another one, since they write other texts and states.
    """
    left_out = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    config = {key: value for key, value in target.config.to_dict().items() if key not in left_out}
    before = json.dumps(config, sort_keys=True, default=str) + (target.weights or "")
    return _hash(target, _as_bfloat16, before)


def tensors_fingerprint(target: TargetWeights) -> str | None:
    """Return a hash of the weights alone, since versions of transformers may describe a model differently.

    None for a float16 target, whose weights cannot be compared with those of another dtype.
    """
    return None if target.dtype == torch.float16 else _hash(target, _as_bfloat16)


def signs_fingerprint(target: TargetWeights) -> str:
    """Return a hash of the signs of these weights, which is the same in every dtype."""
    return _hash(target, torch.signbit)


def _as_bfloat16(weights: Tensor) -> Tensor:
    return weights.to(torch.bfloat16)


def _hash(target: TargetWeights, view: Callable[[Tensor], Tensor], before: str = "") -> str:
    """Return a hash of `before`, and of names, shapes and some weights of each tensor, as `view` converts them."""
    content = hashlib.blake2b(before.encode(), digest_size=16)
    for name, tensor in target.state_dict().items():
        for part in plain_parts(tensor):
            some = view(part.flatten()[:: max(1, part.numel() // _SAMPLED)].cpu())
            content.update(f"{name} {tuple(part.shape)}".encode())
            content.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()
