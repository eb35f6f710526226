"""Training state in one safetensors file: tensors as they are, everything else as JSON in the file's header.

One file holds the parameters of the modules, the state of the optimizers, the random number state of torch and the
caller's own JSON values. It takes its final name only when it is whole, so an interruption leaves the last good one.
Nothing is pickled. What was saved comes back bit for bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from clover.errors import UserError, one_line
from clover.files import parse_json, validated, written

_FORMAT = "clover-checkpoint-1"


@dataclass(frozen=True)
class _Optimizer:
    """What an optimizer's state holds beside tensors: values by "parameter.name", and its parameter groups."""

    values: dict[str, Any]
    groups: list[dict[str, Any]]


@dataclass(frozen=True)
class _Header:
    state: dict[str, Any]
    optimizers: dict[str, _Optimizer]


def save_checkpoint(
    path: str | os.PathLike[str],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, Any],
    trainable_only: bool = False,
) -> None:
    """Write the training state to the file `path`, which holds the old or the whole new state at any time.

    Args:
        modules: saved by name; a parameter that a module holds twice is written once.
        optimizers: saved by name, with their parameter groups.
        state: the caller's own values; anything that JSON can hold.
        trainable_only: leave out parameters that need no gradient.

    Raises:
        UserError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, module in modules.items():
        tensors |= {
            f"module.{name}.{key}": value for key, value in _module_tensors(module, trainable_only).items()
        }
    header = _Header(dict(state), {})
    for name, optimizer in optimizers.items():
        parts, header.optimizers[name] = _split_optimizer(optimizer)
        tensors |= {f"optimizer.{name}.{key}": value for key, value in parts.items()}
    tensors |= _random_state()
    metadata = {"format": _FORMAT, "clover": json.dumps(asdict(header))}
    _write(Path(path), {key: _owned(value) for key, value in tensors.items()}, metadata)


def load_checkpoint(
    path: str | os.PathLike[str],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    trainable_only: bool = False,
) -> dict[str, Any]:
    """Bring modules, optimizers and the random number state back to what `path` holds; return the caller's values.

    Takes the same names and the same `trainable_only` that the file was saved with.

    Raises:
        UserError: the file is missing, damaged, or was saved from other modules or optimizers.
    """
    tensors, header = _read(Path(path))
    expected: dict[str, Tensor] = {}
    for name, module in modules.items():
        expected |= {
            f"module.{name}.{key}": value for key, value in _module_tensors(module, trainable_only).items()
        }
    saved = {key: value for key, value in tensors.items() if key.startswith("module.")}
    _check_same(path, saved, expected)
    if sorted(header.optimizers) != sorted(optimizers):
        raise UserError(f"{path} holds the optimizers {sorted(header.optimizers)}, not {sorted(optimizers)}")
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(saved[key])
    for name, optimizer in optimizers.items():
        _load_optimizer(path, name, optimizer, tensors, header.optimizers[name])
    _restore_random_state(path, tensors)
    return header.state


def _module_tensors(module: nn.Module, trainable_only: bool) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True)
    tensors = {k: p.detach() for k, p in module.named_parameters() if p.requires_grad or not trainable_only}
    buffers = {k: b for k, b in module.named_buffers() if k in persistent}
    return tensors | buffers


def _split_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], _Optimizer]:
    content = optimizer.state_dict()
    tensors, values = {}, {}
    for index, entry in content["state"].items():
        for key, value in entry.items():
            (tensors if isinstance(value, Tensor) else values)[f"{index}.{key}"] = value
    return tensors, _Optimizer(values, content["param_groups"])


def _load_optimizer(
    path: str | os.PathLike[str],
    name: str,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    saved: _Optimizer,
) -> None:
    prefix = f"optimizer.{name}."
    entries = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
    groups = saved.groups
    for group, current in zip(groups, optimizer.param_groups, strict=False):
        group |= {
            key: tuple(group[key]) for key, old in current.items() if isinstance(old, tuple) and key in group
        }
    state: dict[int, dict[str, Any]] = {}
    try:
        for key, value in (entries | saved.values).items():
            index, field = key.split(".", 1)
            state.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: the optimizer {name!r} was saved with other parameters: {error}") from error


def _random_state() -> dict[str, Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states |= {f"random.cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _restore_random_state(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    try:
        torch.set_rng_state(tensors["random.cpu"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise UserError(f"{path} holds no state of the random numbers: {one_line(error)}") from error
    for i in range(torch.cuda.device_count()):
        if f"random.cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random.cuda.{i}"], i)


def _owned(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, and the only tenant of its storage: what the file format asks for."""
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a directory; a checkpoint is one file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with written(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, temporary, metadata)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Tensor], _Header]:
    if not path.is_file():
        raise UserError(f"there is no checkpoint file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise UserError(f"{path} is not a training checkpoint of Clover")
            header = validated(_Header, parse_json(metadata.get("clover", ""), str(path)), str(path))
            return {key: file.get_tensor(key) for key in file.keys()}, header  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from error


def _check_same(
    path: str | os.PathLike[str], saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    for what, names in (
        ("lacks", expected.keys() - saved.keys()),
        ("also holds", saved.keys() - expected.keys()),
    ):
        if names:
            raise UserError(
                f"{path} {what} {min(names)}: it was saved from another model or with other options"
            )
    for key, value in expected.items():
        if saved[key].shape != value.shape or saved[key].dtype != value.dtype:
            there, here = _describe(saved[key]), _describe(value)
            raise UserError(
                f"{path}: {key} is {there} in the file and {here} here; resume with the same options"
            )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
