"""Tell one target from another by its weights, so that what was made with one is not used with another."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from clover.target.model import TargetModel

_LOOKED_AT = 4096  # weights of each tensor


def weights_fingerprint(target: TargetModel) -> str:
    """A hash (32 hexadecimal digits) of the configuration and an even share of the weights, the same in every dtype."""
    content = hashlib.blake2b(digest_size=16)
    left_out = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    config = {key: value for key, value in target.config.to_dict().items() if key not in left_out}
    content.update(json.dumps(config, sort_keys=True, default=str).encode())
    _add_weights(content, target)
    return content.hexdigest()


def tensors_fingerprint(target: TargetModel) -> str:
    """The same of the weights alone: other versions of transformers may describe them in another way."""
    content = hashlib.blake2b(digest_size=16)
    _add_weights(content, target)
    return content.hexdigest()


def _add_weights(content: hashlib.blake2b, target: TargetModel) -> None:
    for name, tensor in target.model.state_dict().items():
        some = tensor.flatten()[:: max(1, tensor.numel() // _LOOKED_AT)].to("cpu", torch.bfloat16)
        content.update(f"{name} {tuple(tensor.shape)}".encode())
        content.update(some.contiguous().view(torch.uint8).numpy().tobytes())
