"""Store safetensors weights in the weight cache, in a wider dtype than that of their files."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from torch import Tensor
from transformers import PretrainedConfig

from clover.cpu.apply import MAX_SECOND_COPY
from clover.target import weight_cache
from clover.target.source import INDEX, WEIGHTS, Source, files_of_index

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Settings of models for which the loader must do more than read weights.
_SPECIAL = ("auto_map", "quantization_config")


def converted(
    directory: Path | None, config: PretrainedConfig, dtype: torch.dtype
) -> dict[str, Tensor] | None:
    """Return all weights in `dtype`, mapped; None if the files can be mapped as they are, or are small.

    Weights that are converted while they load would take the process's own memory. Weights are only widened, which is
    exact; they are not narrowed, because parts of a model may need the wider ones.
    """
    if directory is None or any(getattr(config, name, None) for name in _SPECIAL):
        return None
    files = _files(directory)
    with ExitStack() as opened:
        homes: dict[str, Any] = {}
        for file in files:
            content = opened.enter_context(safe_open(file, "pt"))
            homes |= dict.fromkeys(content.keys(), content)
        layout = {name: _as_kept(homes[name].get_slice(name), dtype) for name in homes}
        kinds = {homes[name].get_slice(name).get_dtype() for name in homes} & _FLOATS.keys()
        widened = any(_FLOATS[kind].itemsize < dtype.itemsize for kind in kinds)
        widened = widened and all(_FLOATS[kind].itemsize <= dtype.itemsize for kind in kinds)
        if not widened or sum(tensor.nbytes for tensor in layout.values()) <= MAX_SECOND_COPY:
            return None

        def make(name: str) -> Tensor:
            return homes[name].get_tensor(name).to(layout[name].dtype)

        name = weight_cache.key(files, f"safetensors-{dtype}".replace("torch.", ""))
        return weight_cache.find_or_make(name, layout, make)


def kept_name(source: Source, config: PretrainedConfig, kind: str) -> str | None:
    """Return the weight cache's name for something made from all weights of a source, such as int8 weights.

    `kind` says what is made. None for weights that are not on the disk yet, for models that need more than weights, and
    for small models.
    """
    directory, files = place_of(source), list[Path]()
    if source.gguf is not None:
        files = [source.gguf.path]
    elif directory is not None and not any(getattr(config, name, None) for name in _SPECIAL):
        files = [*_files(directory), directory / "config.json"]
    whole = all(file.is_file() for file in files)
    if not whole or sum(file.stat().st_size for file in files) < weight_cache.SMALLEST:
        return None
    return weight_cache.key(files, kind)


def place_of(source: Source) -> Path | None:
    """Return the directory of a source; for a name on the hub, that of its newest files in the hub's cache, or None."""
    if source.directory is not None or source.gguf is not None:
        return source.directory
    found = try_to_load_from_cache(source.place, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def _files(directory: Path) -> list[Path]:
    """Return the files that transformers reads: a single file, or those of the index."""
    if (directory / WEIGHTS).is_file() or not (directory / INDEX).is_file():
        return [file for file in [directory / WEIGHTS] if file.is_file()]
    return [directory / name for name in files_of_index(directory / INDEX)]


def _as_kept(stored: Any, dtype: torch.dtype) -> Tensor:
    """Return a tensor on "meta" with the shape of a stored one; its dtype is `dtype`, unless that holds integers."""
    kinds = {kind: one for one, kind in weight_cache.DTYPES.items()}
    kind = dtype if stored.get_dtype() in _FLOATS else kinds[stored.get_dtype()]
    return torch.empty(stored.get_shape(), dtype=kind, device="meta")
