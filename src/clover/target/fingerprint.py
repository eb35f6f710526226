"""Tell one target from another by its weights, so that what was made with one is not used with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor

from clover.target.protocol import TargetWeights

_LOOKED_AT = 4096  # weights of each tensor


def weights_fingerprint(target: TargetWeights) -> str:
    """A hash (32 hexadecimal digits) of the configuration and an even share of the weights as bfloat16.

    The same in every dtype but float16, which rounds, too: what has been rounded twice may end elsewhere.
    """
    content = hashlib.blake2b(digest_size=16)
    left_out = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    config = {key: value for key, value in target.config.to_dict().items() if key not in left_out}
    content.update(json.dumps(config, sort_keys=True, default=str).encode())
    _add_weights(content, target, _as_bfloat16)
    return content.hexdigest()


def tensors_fingerprint(target: TargetWeights) -> str | None:
    """The same of the weights alone: other versions of transformers may describe them in another way.

    None for a float16 target, whose weights may be those of any other dtype or not.
    """
    if target.dtype == torch.float16:
        return None
    content = hashlib.blake2b(digest_size=16)
    _add_weights(content, target, _as_bfloat16)
    return content.hexdigest()


def signs_fingerprint(target: TargetWeights) -> str:
    """A hash of the signs of these weights, which no rounding changes: the same in every dtype."""
    content = hashlib.blake2b(digest_size=16)
    _add_weights(content, target, torch.signbit)
    return content.hexdigest()


def _as_bfloat16(weights: Tensor) -> Tensor:
    return weights.to(torch.bfloat16)


def _add_weights(content: hashlib.blake2b, target: TargetWeights, view: Callable[[Tensor], Tensor]) -> None:
    """Add names, shapes and what `view` makes of some weights of each tensor."""
    for name, tensor in target.state_dict().items():
        some = view(tensor.flatten()[:: max(1, tensor.numel() // _LOOKED_AT)].cpu())
        content.update(f"{name} {tuple(tensor.shape)}".encode())
        content.update(some.contiguous().view(torch.uint8).numpy().tobytes())
