"""Read a finished store of hidden states; its layout is in `clover.data.features.index`.

Shapes: P tokens of a shard, B texts, T tokens, H hidden, W width of the states that are read.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from clover.data import Sample, TextBatch, Texts
from clover.data.features.compute import Features
from clover.data.features.index import REMEDY, Index, Shard, read_index
from clover.data.tensors import open_tensors
from clover.drafts import DraftModel
from clover.errors import UserError
from clover.files import checksum
from clover.target import TargetWeights, weights_fingerprint


@dataclass(frozen=True, eq=False)
class StoredSample(Sample):
    """A sample whose hidden states are in `shard`, beginning at position `start`."""

    shard: _OpenShard
    start: int

    def part(self, start: int, stop: int) -> StoredSample:
        """Return only tokens `start` to `stop`."""
        return replace(
            self,
            tokens=self.tokens[start:stop],
            loss_mask=self.loss_mask[start:stop],
            start=self.start + start,
        )


class FeatureStore(Texts):
    """The windows of a finished store as training texts, with their hidden states.

    Args:
        path: the directory that `write_features` made.

    Raises:
        UserError: there is no finished store, or one of its files is missing. A damaged shard is found only when it is
            first read.
    """

    def __init__(self, path: Path):
        self.path = path
        index = read_index(path)
        if not index.finished:
            raise UserError(f"{path} is not finished; run the same clover features command with --resume")
        self.config = index.config
        self._shards = open_shards(path, index)
        self._ends = list(accumulate(len(shard.starts) for shard in self._shards))
        content = "".join(shard.checksum for shard in index.shards)
        self.fingerprint = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        self.tokens = sum(shard.tokens for shard in index.shards)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> StoredSample:
        """Return window number `row`."""
        number = bisect_right(self._ends, row)
        return self._shards[number].sample(row - (self._ends[number - 1] if number else 0))

    def features(self, batch: TextBatch, hidden_state: str) -> Features:
        """Read the states of a batch of this store's windows, [B, T, W] and [B, T, H] on its device; 0 on padding.

        `hidden_state` is the store's own kind, or post_norm, which every store has.
        """
        windows = [window for window in batch.windows if isinstance(window, StoredSample)]
        assert len(windows) == len(batch.windows), "a batch whose windows are not of a store"
        rows = [window.shard.states(window, hidden_state) for window in windows]
        read, hidden = (
            torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True).to(batch.tokens.device)
            for part in zip(*rows, strict=True)
        )
        return Features(read, hidden)

    def check_widths(self, *widths: int) -> None:
        """Raise UserError unless `widths` are those of the states after the final norm and, if any, of the others."""
        for shard in self._shards:
            if shard.shapes != [(len(shard.tokens), width) for width in widths]:
                raise shard.damaged()


class _OpenShard:
    """A shard and the starts of its windows; its states are read from the disk when they are needed.

    The file is compared with its hash when its states are first read, because hashing a large store takes minutes. So
    the training's time includes half a CPU second per 256 MiB, mostly in the first steps, which read all shards.

    Args:
        names: the names of the states that the file must contain.
    """

    def __init__(self, path: Path, shard: Shard, names: Sequence[str]):
        self.path, self._expected = path / shard.name, shard
        with open_tensors(self.path, REMEDY) as file:
            lengths = file.get_tensor("lengths")
            self.tokens, self.loss_mask = file.get_tensor("tokens"), file.get_tensor("loss_mask").bool()
            states = [file.get_slice(name) for name in names]
            self.shapes = [tuple(part.get_shape()) for part in states]
            dtypes = {part.get_dtype() for part in states}
        if not self._fits(lengths) or dtypes != {"BF16"}:
            raise self.damaged()
        self._ends = lengths.cumsum(0).tolist()
        self.starts = [0, *self._ends[:-1]]

    def _fits(self, lengths: Tensor) -> bool:
        """Return True if dtypes and shapes fit windows of these lengths."""
        integers = lengths.dtype == torch.int64 and self.tokens.dtype in (torch.int32, torch.int64)
        count = self._expected.tokens
        flat = lengths.ndim == 1 and self.tokens.shape == self.loss_mask.shape == (count,)
        rows = all(len(shape) == 2 and shape[0] == count for shape in self.shapes)
        return integers and flat and rows and bool((lengths > 0).all()) and int(lengths.sum()) == count > 0

    @cached_property
    def _file(self) -> safe_open:
        if checksum(self.path) != self._expected.checksum:
            raise self.damaged()
        return safe_open(self.path, "pt")

    def sample(self, window: int) -> StoredSample:
        start, end = self.starts[window], self._ends[window]
        return StoredSample(self.tokens[start:end], self.loss_mask[start:end], self, start)

    def states(self, window: StoredSample, hidden_state: str) -> tuple[Tensor, Tensor]:
        """Return the states that a draft reads [T, W] and the states after the final norm [T, H]."""
        part = slice(window.start, window.start + window.size)
        hidden = self._file.get_slice("hidden")[part]
        return hidden if hidden_state == "post_norm" else self._file.get_slice("read")[part], hidden

    def damaged(self) -> UserError:
        """Return the error that the file has changed since it was written."""
        return UserError(f"{self.path} is damaged; {REMEDY}")


def open_shards(path: Path, index: Index) -> list[_OpenShard]:
    """Open all shards of a store; UserError if one is missing or does not match the index."""
    names = ["hidden"] if index.config.hidden_state == "post_norm" else ["hidden", "read"]
    return [_OpenShard(path, shard, names) for shard in index.shards]


def check_store(store: FeatureStore, target: TargetWeights, draft: DraftModel) -> None:
    """Raise UserError unless the store was made with this target and holds what the draft reads."""
    stored, here = store.config.dtype, target.dtype_name
    rounded = stored != here and "float16" in (stored, here)  # rounding to float16 changes the hash
    if not rounded and store.config.target != weights_fingerprint(target):
        raise UserError(
            f"the hidden states in {store.path} come from another target; use the same --target and --weights as "
            "clover features did"
        )
    kept, read = store.config.hidden_state, draft.config.hidden_state
    if read not in (kept, "post_norm"):
        raise UserError(f"the draft reads {read} states, but {store.path} holds {kept}; see --hidden-state")
    store.check_widths(target.hidden_size, *([] if kept == "post_norm" else [target.hidden_width(kept)]))
