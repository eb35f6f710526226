"""Read a GGUF file: its fields, and the places of its tensors."""

import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from clover.errors import UserError

MAGIC = b"GGUF"
_DAMAGES = struct.error, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError
_PART = 2**16  # bytes that are dequantized at once
_ALIGNMENT = 32  # bytes; the default if a file does not give the alignment of its tensors
# The codes of numeric field types, with the letters of `struct`.
_NUMBERS: dict[int, str] = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_NO_MODELS = {
    "adapter": "an adapter of another model; name that model, or a model into which it was merged",
    "imatrix": "an importance matrix for quantizing a model; name the model",
    "mmproj": "the image or audio part of a model; name the file of its language model",
    "vocab": "a vocabulary without a model; name the file with the weights",
}


@dataclass(frozen=True)
class _Place:
    """The place of a tensor: its shape as in PyTorch, the code of its type, and its offset from the first tensor."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """The fields and tensors of a language model in one GGUF file; UserError for any other file.

    Attributes:
        fields: all fields by name; arrays are lists.
        tensors: the shapes of all tensors by name, as PyTorch counts dimensions.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        self.fields: dict[str, Any] = {}
        self._places: dict[str, _Place] = {}
        try:
            with path.open("rb") as file:
                self._read(file)
        except UserError:
            raise
        except _DAMAGES as error:
            raise self.refusal("it is damaged or its download was interrupted; get it again") from error
        self._check()
        self.tensors = {name: place.shape for name, place in self._places.items()}

    @property
    def architecture(self) -> str:
        """Return the architecture by llama.cpp's name, such as ``llama``."""
        return str(self.fields.get("general.architecture", ""))

    def facts(self) -> dict[str, Any]:
        """Return the fields that describe the model; their names come without the architecture's prefix."""
        start = f"{self.architecture}."
        return {key.removeprefix(start): value for key, value in self.fields.items() if key.startswith(start)}

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, dequantized to float32; UserError if its type cannot be read.

        It is read in parts that fit the processor's cache, which takes a fifth of the time.
        """
        import gguf

        stored = self._stored(name)
        found = torch.empty(self.tensors[name], dtype=torch.float32, device="cpu")
        assert stored is not None, "the end of the file was checked"
        rows = stored.reshape(-1, stored.shape[-1])
        numbers, step = found.view(len(rows), -1).numpy(), max(1, _PART // rows.shape[1])
        try:
            for start in range(0, len(rows), step):
                kind = gguf.GGMLQuantizationType(self._places[name].kind)
                numbers[start : start + step] = gguf.dequantize(rows[start : start + step], kind)
        except NotImplementedError as error:
            raise self._unknown(name) from error
        return found

    def _stored(self, name: str) -> np.ndarray | None:
        """Return the stored bytes [..., W] of a tensor; None if the file is too short."""
        import gguf

        place = self._places[name]
        try:
            shape = gguf.quant_shape_to_byte_shape(place.shape, gguf.GGMLQuantizationType(place.kind))
        except ValueError as error:
            raise self._unknown(name) from error
        start, count = self._data_start + place.offset, prod(shape)
        return self._bytes[start : start + count].reshape(shape) if start + count <= self.size else None

    def _unknown(self, name: str) -> UserError:
        kind = self._places[name].kind
        return self.refusal(
            f"the package gguf cannot unpack {name} (type {kind}); pip install --upgrade gguf"
        )

    def refusal(self, reason: str) -> UserError:
        """Return the error that names the file."""
        return UserError(f"target model {self.path}: {reason}")

    @cached_property
    def _bytes(self) -> np.ndarray:
        return np.memmap(self.path, dtype=np.uint8, mode="r")

    def _read(self, file: BinaryIO) -> None:
        if file.read(len(MAGIC)) != MAGIC:
            raise self.refusal("it is not a GGUF file")
        version, tensors, fields = struct.unpack("<IQQ", self._take(file, 20))
        if version not in (2, 3):
            kind = f"its version {version} of GGUF" if version < 2**16 else "GGUF for big-endian machines"
            raise self.refusal(f"{kind} is not read (2 and 3 for little-endian ones are); convert it again")
        for _ in range(fields):
            name = self._string(file)
            self.fields[name] = self._value(file, self._number(file, "I"))
        for _ in range(tensors):
            name, dimensions = self._string(file), self._number(file, "I")
            shape = struct.unpack(f"<{dimensions}Q", self._take(file, 8 * dimensions))
            self._places[name] = _Place(shape[::-1], *struct.unpack("<IQ", self._take(file, 12)))
        alignment = self.fields.get("general.alignment", _ALIGNMENT)
        self._data_start = -(-file.tell() // alignment) * alignment

    def _check(self) -> None:
        """Raise UserError unless the file is a complete model."""
        kind = self.fields.get("general.type", "model")
        if kind != "model":
            raise self.refusal(f"it is {_NO_MODELS.get(kind, f'of the type {kind}, not a model')}")
        if self.fields.get("split.count", 1) > 1:
            raise self.refusal(
                f"it is part {self.fields.get('split.no', 0) + 1} of {self.fields['split.count']}; merge the parts: "
                f"llama-gguf-split --merge FIRST_PART.gguf whole.gguf"
            )
        if not self.architecture or not self._places:
            raise self.refusal(
                f"it has no {'tensors' if self.architecture else 'architecture'}, so it is not a model"
            )
        last = max(self._places, key=lambda name: self._places[name].offset)
        if self._stored(last) is None:
            raise self.refusal(f"it ends within its tensor {last}; its download was interrupted; repeat it")

    def _value(self, file: BinaryIO, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(file, _NUMBERS[kind])
        if kind == _STRING:
            return self._string(file)
        if kind != _ARRAY:
            raise ValueError(f"unknown type {kind}")
        kind, count = struct.unpack("<IQ", self._take(file, 12))
        if kind in _NUMBERS:
            form = f"<{count}{_NUMBERS[kind]}"
            return list(struct.unpack(form, self._take(file, struct.calcsize(form))))
        return [self._value(file, kind) for _ in range(count)]

    def _number(self, file: BinaryIO, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self._take(file, struct.calcsize(f"<{letter}")))[0]

    def _string(self, file: BinaryIO) -> str:
        return self._take(file, self._number(file, "Q")).decode()

    def _take(self, file: BinaryIO, count: int) -> bytes:
        """Return the next bytes; ValueError if the file is too short."""
        if count > self.size:
            raise ValueError("more bytes than the file has")
        content = file.read(count)
        if len(content) < count:
            raise ValueError("the file ends")
        return content
