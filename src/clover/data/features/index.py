"""The index of a store of hidden states, and the layout of its shards.

A store is a directory with `index.json` and shards `00000.safetensors`, …. A shard holds windows of text one after
another: `lengths` Int [windows], `tokens` Int [P], `loss_mask` Bool [P], `hidden` BFloat16 [P, H] after the final norm,
and, if a draft reads states of another kind, these as `read` BFloat16 [P, W].

Shapes: P tokens of a shard, H hidden, W width of the states that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from clover.errors import UserError
from clover.validation import read_json, validated

INDEX = "index.json"
REMEDY = "delete the store and run clover features again"
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class StoreConfig:
    """The inputs of a store; it can be resumed only with the same.

    Args:
        target, texts: fingerprints of the target and of the texts.
        dtype: the target's dtype.
        hidden_state: the kind of hidden states that drafts read, see `Target.hidden_width`.
        max_length: tokens of a window; longer texts are cut.
        batch_tokens: most tokens that the target runs at once.
    """

    target: str
    texts: str
    dtype: str
    hidden_state: str = "post_norm"
    max_length: Annotated[int, Field(ge=3)] = 2048
    batch_tokens: Annotated[int, Field(ge=3)] = 4096


@dataclass(frozen=True)
class Shard:
    """A file of the store: how many texts had been read when it was full, its tokens, and the hash of its bytes."""

    name: Annotated[str, Field(pattern=r"^\d{5}\.safetensors$")]
    texts: _Count
    tokens: _Count
    checksum: str


@dataclass(frozen=True)
class Index:
    """The content of `index.json`; a store is complete only if it is `finished`."""

    format: Literal["clover-features-1"]
    config: StoreConfig
    finished: bool
    shards: list[Shard]


def has_begun(path: Path) -> bool:
    """Return True if the directory holds a store, finished or not."""
    return (path / INDEX).exists()


def read_index(path: Path) -> Index:
    """Read the index of a store; UserError if there is none, or `write_features` did not write it."""
    content, name = read_json(path / INDEX), str(path / INDEX)
    config = content.get("config")
    if isinstance(config, dict) and "dtype" not in config:  # stores of older versions
        raise UserError(f"{path} does not say in which dtype the target ran; {REMEDY}")
    return validated(Index, content, name)
