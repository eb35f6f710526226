"""Save and load the state of a training in one safetensors file. All that is not tensors is JSON in its header.

The file contains modules, optimizers, torch's random number state and the caller's own values. It gets its final name
only when it is complete. Nothing is pickled, and every value is restored bit for bit.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from clover.data.tensors import open_tensors
from clover.errors import UserError, one_line
from clover.files import output_file
from clover.validation import parse_json, validated

_FORMAT = "clover-checkpoint-2"


@dataclass(frozen=True)
class _Header:
    """The values that are not tensors: the caller's own, and the parameter groups of each optimizer."""

    state: dict[str, Any]
    optimizers: dict[str, list[dict[str, Any]]]


def save_checkpoint(
    path: str | os.PathLike[str],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, Any],
) -> None:
    """Write the training state to the file `path`, which always contains either the old state or the whole new one.

    Frozen parameters are left out, and a shared parameter is written once. The state of the optimizers must be tensors;
    the caller's own values must be valid in JSON.
    """
    if Path(path).is_dir():
        raise UserError(f"{path} is a directory; a checkpoint is one file")
    tensors, groups = _tensors(modules), {}
    for name, optimizer in optimizers.items():
        content = optimizer.state_dict()
        groups[name] = content["param_groups"]
        for index, entry in content["state"].items():
            tensors |= {f"optimizer.{name}.{index}.{key}": value for key, value in entry.items()}
    if torch.cuda.is_initialized():
        tensors |= {f"random.cuda.{i}": value for i, value in enumerate(torch.cuda.get_rng_state_all())}
    metadata = {"format": _FORMAT, "clover": json.dumps({"state": dict(state), "optimizers": groups})}
    with output_file(path) as temporary:
        save_file({key: _owned(value) for key, value in tensors.items()}, temporary, metadata)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())


def load_checkpoint(
    path: str | os.PathLike[str],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
) -> dict[str, Any]:
    """Restore modules, optimizers and the random number state from `path`; return the caller's own values.

    UserError if the file cannot be read, is damaged, or was saved from other modules or optimizers.
    """
    saved, header = _read(Path(path))
    expected = _tensors(modules)
    _check_same(path, saved, expected)
    if sorted(header.optimizers) != sorted(optimizers):
        raise UserError(f"{path} holds the optimizers {sorted(header.optimizers)}, not {sorted(optimizers)}")
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(saved[key])
    for name, optimizer in optimizers.items():
        _load_optimizer(path, name, optimizer, saved, header.optimizers[name])
    try:
        torch.set_rng_state(saved["random.cpu"])
        for i in range(torch.cuda.device_count()):
            if f"random.cuda.{i}" in saved:
                torch.cuda.set_rng_state(saved[f"random.cuda.{i}"], i)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{path} holds no state of random numbers: {one_line(error)}") from error
    return header.state


def _tensors(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the modules' trained parameters and persistent buffers, and the CPU's random number state."""
    found = {"random.cpu": torch.get_rng_state()}
    for name, module in modules.items():
        saved = module.state_dict(keep_vars=True)
        found |= {
            f"module.{name}.{key}": parameter.detach()
            for key, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        found |= {f"module.{name}.{key}": value for key, value in module.named_buffers() if key in saved}
    return found


def _load_optimizer(
    path: str | os.PathLike[str],
    name: str,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    groups: list[dict[str, Any]],
) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for group in groups:  # JSON turns tuples, such as AdamW's betas, into lists.
        group |= {k: tuple(v) for k, v in group.items() if isinstance(v, list) and k != "params"}
    try:
        for place, value in tensors.items():
            if place.startswith(prefix := f"optimizer.{name}."):
                index, key = place.removeprefix(prefix).split(".", 1)
                state.setdefault(int(index), {})[key] = value
        _check_optimizer(optimizer, state, groups)
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: the optimizer {name!r} was saved with other parameters: {error}") from error


def _check_optimizer(
    optimizer: Optimizer, state: Mapping[int, Mapping[str, Tensor]], groups: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ValueError for values that `load_state_dict` accepts, but that fail in the first step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in state.items():
        shape = parameters[index].shape if 0 <= index < len(parameters) else None
        for key, value in entry.items():
            if value.shape not in (shape, ()):
                raise ValueError(f"its {key} of parameter {index} has the shape {list(value.shape)}")
    for own, saved in zip(optimizer.param_groups, groups, strict=True):
        for key, value in own.items():
            if key != "params" and not _alike(value, saved[key]):
                raise ValueError(f"its {key} is {saved[key]!r}")


def _alike(own: Any, saved: Any) -> bool:
    """Return True if every number was saved as a finite number; other values are not compared."""
    if isinstance(own, tuple):
        return isinstance(saved, tuple) and len(own) == len(saved) and all(map(_alike, own, saved))
    return not _is_number(own) or (_is_number(saved) and abs(saved) <= sys.float_info.max)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _owned(tensor: Tensor) -> Tensor:
    """Return a tensor as the file format requires: on the CPU, contiguous, and with its own storage."""
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _read(path: Path) -> tuple[dict[str, Tensor], _Header]:
    with open_tensors(path, "delete it, and train from the start") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise UserError(f"{path} is not a training checkpoint of this version of Clover")
        header = validated(_Header, parse_json(metadata.get("clover", ""), str(path)), str(path))
        return {key: file.get_tensor(key) for key in file.keys()}, header  # noqa: SIM118


def _check_same(path: object, saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    present = {
        _describe(key, saved[key]) for key in saved if not key.startswith(("optimizer.", "random.cuda."))
    }
    needed = {_describe(key, value) for key, value in expected.items()}
    for what, names in (("lacks", needed - present), ("also holds", present - needed)):
        if names:
            raise UserError(
                f"{path} {what} {min(names)}: it was saved from another model or by other options"
            )


def _describe(name: str, tensor: Tensor) -> str:
    return f"{name} ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
