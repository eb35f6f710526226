"""Fingerprints of a target's weights, so that files made with one target are not used with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor

from clover.target.protocol import TargetWeights

_SAMPLED = 4096  # weights of each tensor, at most twice as many


def weights_fingerprint(target: TargetWeights) -> str:
    """Return a hash (32 hexadecimal digits) of the configuration and of evenly spaced weights as bfloat16.

    It is the same in every dtype but float16, since weights that were rounded twice may differ.
    """
    content = hashlib.blake2b(digest_size=16)
    left_out = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    config = {key: value for key, value in target.config.to_dict().items() if key not in left_out}
    content.update(json.dumps(config, sort_keys=True, default=str).encode())
    _add_weights(content, target, _as_bfloat16)
    return content.hexdigest()


def tensors_fingerprint(target: TargetWeights) -> str | None:
    """Return a hash of the weights alone, since versions of transformers may describe a model differently.

    None for a float16 target, whose weights cannot be compared with those of another dtype.
    """
    if target.dtype == torch.float16:
        return None
    content = hashlib.blake2b(digest_size=16)
    _add_weights(content, target, _as_bfloat16)
    return content.hexdigest()


def signs_fingerprint(target: TargetWeights) -> str:
    """Return a hash of the signs of these weights, which is the same in every dtype."""
    content = hashlib.blake2b(digest_size=16)
    _add_weights(content, target, torch.signbit)
    return content.hexdigest()


def _as_bfloat16(weights: Tensor) -> Tensor:
    return weights.to(torch.bfloat16)


def _add_weights(content: hashlib.blake2b, target: TargetWeights, view: Callable[[Tensor], Tensor]) -> None:
    """Add names, shapes and some weights of each tensor, as `view` converts them."""
    for name, tensor in target.state_dict().items():
        some = view(tensor.flatten()[:: max(1, tensor.numel() // _SAMPLED)].cpu())
        content.update(f"{name} {tuple(tensor.shape)}".encode())
        content.update(some.contiguous().view(torch.uint8).numpy().tobytes())
