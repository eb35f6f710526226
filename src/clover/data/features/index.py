"""What a store of hidden states is made of: its index, and the layout of its shards.

A store is a directory with `index.json` and shards `00000.safetensors`, …. A shard holds windows of text one after
another: `lengths` Int [windows], `tokens` Int [P], `loss_mask` Bool [P], `hidden` BFloat16 [P, H] after the final norm,
and, where a draft reads states of another kind, these as `read` BFloat16 [P, W].

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
    """What a store is made of.

    Args:
        target, texts: fingerprints of the target and of the texts.
        dtype: of the target that a store is begun with, which goes on in the same.
        hidden_state: kind of the hidden states that are kept for drafts to read, see `Target.hidden_width`.
        max_length: tokens of a window; longer texts are cut.
        batch_tokens: tokens that the target runs at once, at most.
    """

    target: str
    texts: str
    dtype: str
    hidden_state: str = "post_norm"
    max_length: Annotated[int, Field(ge=3)] = 2048
    batch_tokens: Annotated[int, Field(ge=3)] = 4096


@dataclass(frozen=True)
class Shard:
    """A file of the store: the texts that were read when it was full, its tokens, and the hash of its bytes."""

    name: Annotated[str, Field(pattern=r"^\d{5}\.safetensors$")]
    texts: _Count
    tokens: _Count
    checksum: str


@dataclass(frozen=True)
class Index:
    """What `index.json` holds; the store is whole where it is finished."""

    format: Literal["clover-features-1"]
    config: StoreConfig
    finished: bool
    shards: list[Shard]


def has_begun(path: Path) -> bool:
    """Return True if the directory holds a store, finished or not."""
    return (path / INDEX).exists()


def read_index(path: Path) -> Index:
    """Read the index of a store; UserError if there is none, or it is not what `write_features` wrote."""
    content, name = read_json(path / INDEX), str(path / INDEX)
    config = content.get("config")
    if isinstance(config, dict) and "dtype" not in config:  # stores of older versions
        raise UserError(f"{path} does not say in which dtype the target ran; {REMEDY}")
    return validated(Index, content, name)
