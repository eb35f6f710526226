"""Load weights and a tokenizer from a directory or a hub name, with one clear line for every failure."""

import re
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers as hf
from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn

from clover.cpu.int8 import INT8, check_processor
from clover.cpu.linear import fast_layers, linear_of
from clover.errors import UserError, one_line
from clover.target import gguf
from clover.target.converted import converted
from clover.target.source import Source
from clover.target.support import attention_of, auto_class, check_config
from clover.validation import read_json

_MOST = {"layer": 1_000, "head": 100_000, "size": 100_000_000}  # largest numbers, by a word in their names
_DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
_DTYPES |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "spiece.model",
)
# Rows of the products by which dtypes are compared: of a step with a short chain, and of many texts at once.
FEW_ROWS, MANY_ROWS = 4, 512
# A run has at least so many products of numbers. With few rows these need many weights, which no cache holds.
_WORK, _TIMED_RUNS = 2**28, 7
# The start does not dominate a run of `_LONG` seconds. Then a dtype that takes `_CLEARLY` times as long is slower.
_LONG, _CLEARLY = 0.25, 1.5
# Below this hidden size bfloat16 is slower: 393 steps in the time of 435, with 1 M parameters of hidden size 128.
_SMALL = 256
FAILURES = (
    *(OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError, ImportError, AttributeError),
    *(ArithmeticError, AssertionError, SafetensorError, struct.error, StrictDataclassError),
)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device, by default a GPU if there is one; UserError if it cannot be used."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        check_device(resolved)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {str(device)!r} cannot be used here: {one_line(error)}") from error
    return resolved


def check_device(device: torch.device) -> None:
    """Raise UserError for other devices than CPU and GPU. Apple's mps lacks float64, in which tokens are chosen."""
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {str(device)!r} is not supported; use cpu or cuda")


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the requested dtype. The default is float32 on a CPU, where output is exact, and bfloat16 elsewhere."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    resolved = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if resolved is None or resolved not in _DTYPES.values():
        raise UserError(f"unknown dtype {str(dtype)!r}; use one of {', '.join(_DTYPES)}")
    return resolved


def check_weights(weights: str | None, device: torch.device) -> str | None:
    """Return the requested kind of weights: "int8", or None for as they are; UserError if they cannot run here."""
    if weights not in (None, INT8):
        raise UserError(f"unknown weights {str(weights)!r}; use {INT8}, or leave --weights out")
    if weights is not None:
        check_processor(device)
    return weights


def check_exact(exact: bool, device: torch.device) -> None:
    """Raise UserError if exact texts are requested on another device than a CPU."""
    if exact and device.type != "cpu":
        raise UserError("exact texts need a CPU; leave --exact out, or choose the device cpu")


def _multiplying_seconds(rows: torch.Tensor, layers: Sequence[nn.Linear]) -> float:
    """Return the seconds of the products of rows [R, I] with all layers."""
    started = time.perf_counter()
    for layer in layers:
        layer(rows)
    return time.perf_counter() - started


@torch.no_grad()
def fastest_dtype(
    hidden_size: int,
    rows: int,
    device: torch.device,
    seconds_of: Callable[[torch.Tensor, Sequence[nn.Linear]], float] = _multiplying_seconds,
) -> torch.dtype:
    """Return bfloat16 or float32, whichever multiplies so many rows of this size faster here; bfloat16 on a GPU.

    The answer depends on the rows: with few, the weights are read, of which bfloat16 has half; with many, AVX-512
    without AMX multiplies float32 faster. Small models spend their time between the products, where casts make bfloat16
    slower. For large models one run of each dtype is enough if the two clearly differ: a run takes seconds on a
    processor without bfloat16 instructions.
    """
    if device.type != "cpu":
        return torch.bfloat16
    if hidden_size < _SMALL:
        return torch.float32
    count = -(-_WORK // (rows * 4 * hidden_size**2))
    products = dict[torch.dtype, tuple[torch.Tensor, list[nn.Linear]]]()
    for dtype in (torch.float32, torch.bfloat16):
        weights = [linear_of(torch.ones(4 * hidden_size, hidden_size, dtype=dtype)) for _ in range(count)]
        layers = [fast_layers([one], packed=True, int8=False)[0] for one in weights]
        products[dtype] = torch.ones(rows, hidden_size, dtype=dtype), layers
    seconds = {dtype: seconds_of(*product) for dtype, product in products.items()}
    faster, slower = sorted(seconds.values())
    if slower < _LONG or slower < _CLEARLY * faster:
        for dtype, product in products.items():
            seconds[dtype] = median(seconds_of(*product) for _ in range(_TIMED_RUNS))
    return min(seconds, key=seconds.__getitem__)


def load_config(source: Source, trust_remote_code: bool) -> hf.PretrainedConfig:
    """Read and check the configuration; UserError if it is missing, broken, unknown or not supported."""
    directory = source.directory
    if directory and (directory / "config.json").is_file():
        _check_sizes(directory / "config.json")
    try:
        if source.gguf is not None:
            config = gguf.read_config(source.gguf)
        else:
            config = hf.AutoConfig.from_pretrained(source.place, trust_remote_code=trust_remote_code)
    except UserError:
        raise
    except FAILURES as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"target model {source.name} comes with Python code of its own; "
                "read it, then allow it with trust_remote_code"
            ) from error
        raise _failure(source, error) from error
    if directory and (directory / "generation_config.json").is_file():
        read_json(directory / "generation_config.json")  # because transformers ignores a broken one
    check_config(config)
    return config


def _check_sizes(file: Path) -> None:
    """Raise UserError for absurd sizes. To build such a model would take minutes without a message."""
    content = read_json(file)
    parts = [content, *content.values()]
    for name, value in (field for part in parts if isinstance(part, dict) for field in part.items()):
        most = next((most for word, most in _MOST.items() if word in name), None)
        if most is not None and isinstance(value, int) and value > most:
            raise UserError(f"{file}: {name} is {Decimal(value):.4g}; no model has more than {most:,}")


def load_model(
    source: Source,
    config: hf.PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    weight_cache: bool = True,
) -> hf.PreTrainedModel:
    """Read safetensors weights (never pickles) into the unpatched model; UserError if any is missing or broken.

    With `weight_cache`, converted weights are stored in the user's cache and mapped from there.
    """
    if source.directory:
        _refuse_pickles(source.directory)
    try:
        if source.gguf is not None:
            return gguf.load_weights(source.gguf, config, dtype, weight_cache).to(device)  # type: ignore[arg-type]
        keeps = weight_cache and device.type == "cpu"
        kept = converted(source.directory, config, dtype) if keeps else None
        model_class = auto_class(config) if kept is None else auto_class(config)._model_mapping[type(config)]
        loaded: Any = model_class.from_pretrained(
            source.place if kept is None else None,
            config=config,
            state_dict=kept,
            dtype=dtype,
            attn_implementation=attention_of(config),
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            use_safetensors=True,
        )
        model, report = loaded
        missing = sorted(report["missing_keys"])
        if missing:
            raise UserError(
                f"target model {source.name}: its files have no {missing[0]} ({len(missing)} missing)"
            )
        _refuse_left_over(source, model, sorted(report["unexpected_keys"]))
        if kept is not None:
            model.config.name_or_path = source.place
            if (Path(source.place) / "generation_config.json").is_file():
                model.generation_config = hf.GenerationConfig.from_pretrained(source.place)
        return model.to(device)
    except UserError:
        raise
    except FAILURES as error:
        if "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"target model {source.name}: its weights do not have the shapes of config.json"
            ) from error
        raise _failure(source, error) from error


def _refuse_left_over(source: Source, model: hf.PreTrainedModel, names: list[str]) -> None:
    """Raise UserError if the files have tensors of layers that config.json does not describe: another model would run.

    Other tensors, such as the head of a reward model or layers for several tokens, do not change logits.
    """
    known = {name for name, _ in model.named_modules()}
    for name in names:
        module, layer = name.rpartition(".")[0], re.match(r"(.*\.)\d+\.", name)
        if module in known or (layer is not None and f"{layer[1]}0" in known):
            raise UserError(
                f"target model {source.name}: config.json does not describe {name}, which its files have ({len(names)} "
                "such tensors); it is not the configuration of these weights"
            )


def load_tokenizer(source: Source, trust_remote_code: bool) -> hf.PreTrainedTokenizerBase | None:
    """Return the tokenizer saved with the model, None if there is none; UserError if it is broken."""
    directory = source.directory
    if directory and not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        if source.gguf is not None:
            return gguf.load_tokenizer(source.gguf)
        return hf.AutoTokenizer.from_pretrained(source.place, trust_remote_code=trust_remote_code)
    except UserError:
        raise
    except BaseException as error:  # on broken files the tokenizers library raises Exception or panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        on_hub = not Path(source.place).is_dir()
        if on_hub and all(_is_missing(source.place, name) for name in _TOKENIZER_FILES):
            return None
        raise UserError(f"the tokenizer of {source.name} cannot be read: {one_line(error)}") from error


def _is_missing(repository: str, name: str) -> bool:
    """Return True if it is known that a repository on the hub has no such file."""
    with suppress(Exception):  # the name of the repository, the network, the disk or rights may be wrong
        try:
            hf_hub_download(repository, name)
        except EntryNotFoundError:  # also without a network; then the cache knows it from before, or not
            return try_to_load_from_cache(repository, name) is _CACHED_NO_EXIST
    return False


def _failure(source: Source, error: BaseException) -> UserError:
    for file in sorted(source.directory.glob("*.safetensors")) if source.directory else ():
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError, UnicodeDecodeError):
            return UserError(f"target model {file} is damaged or its download was interrupted; get it again")
    return UserError(f"target model {source.name} cannot be loaded: {one_line(error)}")


def _refuse_pickles(directory: Path) -> None:
    if any(directory.glob("*.safetensors*")):
        return
    found = next((f.name for end in ("bin", "pt", "pth") for f in directory.glob(f"*.{end}")), None)
    reason = f"only {found}, a pickle, which could run code; convert it to" if found else "no"
    raise UserError(f"target model {directory}: the directory holds {reason} safetensors weights")
