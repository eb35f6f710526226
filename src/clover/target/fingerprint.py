"""Compute fingerprints of a target's weights, so that files made with one target are not used with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clover.cpu import plain_parts
from clover.target.protocol import TargetWeights

_SAMPLED = 4096  # at least so many weights of each large tensor are hashed, and less than twice as many
_TEXT = (
    "Fünf naïve “quotes”: 12345 + 0x1F\n\n\tdef f(x_1):\n        return {'a': [1.5e-3]}"
    "  # 你好 Привет 🙂\r\n   end \n"
)


def weights_fingerprint(target: TargetWeights) -> str:
    """Return a hash (32 hexadecimal digits) of the configuration and of evenly spaced weights as bfloat16.

    It is the same in every dtype but float16, because weights that were rounded twice may differ. It is another one
    for int8 weights, because their texts and states differ.
    """
    left_out = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    config = {key: value for key, value in target.config.to_dict().items() if key not in left_out}
    before = json.dumps(config, sort_keys=True, default=str) + (target.weights or "")
    return _hash(target, _as_bfloat16, before)


def tensors_fingerprint(target: TargetWeights) -> str | None:
    """Return a hash of the weights only, because versions of transformers may describe a model differently.

    None for a float16 target, because its weights cannot be compared with those of another dtype.
    """
    return None if target.dtype == torch.float16 else _hash(target, _as_bfloat16)


def norms_fingerprint(target: TargetWeights) -> str:
    """Return a hash of the norms and biases, which most quantizations leave unchanged.

    It is the same in every dtype for weights that were published in bfloat16, as most are.
    """
    return _hash(
        target, lambda weights: _as_bfloat16(_as_bfloat16(weights).to(torch.float16)), vectors_only=True
    )


def tokens_fingerprint(tokenizer: Any) -> str | None:
    """Return a hash of the tokens of a text with words, numbers, code and other scripts; None without a tokenizer."""
    if tokenizer is None:
        return None
    tokens = tokenizer(_TEXT, add_special_tokens=False, verbose=False)["input_ids"]
    return hashlib.blake2b(json.dumps(list(tokens)).encode(), digest_size=16).hexdigest()


def _as_bfloat16(weights: Tensor) -> Tensor:
    return weights.to(torch.bfloat16)


def _hash(
    target: TargetWeights, view: Callable[[Tensor], Tensor], before: str = "", vectors_only: bool = False
) -> str:
    """Return a hash of `before` and of each tensor's name, shape and some weights, converted by `view`."""
    content = hashlib.blake2b(before.encode(), digest_size=16)
    for name, tensor in target.state_dict().items():
        if vectors_only and tensor.dim() != 1:
            continue
        for part in plain_parts(tensor):
            some = view(part.flatten()[:: max(1, part.numel() // _SAMPLED)].cpu())
            content.update(f"{name} {tuple(part.shape)}".encode())
            content.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()
