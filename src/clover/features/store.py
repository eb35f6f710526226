"""Hidden states of a corpus on disk: computed once, read by any number of trainings.

A store is a directory with `index.json` and shards `00000.safetensors`, …. A shard holds windows of text one after
another: `lengths` Int [windows], `tokens` Int [P], `loss_mask` Bool [P], `hidden` BFloat16 [P, H] after the final norm,
and, where a draft reads states of another kind, these as `read` BFloat16 [P, W].

Shapes: P tokens of a shard, H hidden, W width of the states that are read.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from clover.data import Batch, Sample, Texts
from clover.data.batching import NOTHING_TO_LEARN, check_tokens, collate, grouped, windows
from clover.drafts import DraftModel
from clover.errors import UserError
from clover.features.compute import Features, compute_features
from clover.files import (
    alone_in,
    check_output_directory,
    checksum,
    output_file,
    read_json,
    validated,
    write_json,
)
from clover.target import TargetModel, weights_fingerprint
from clover.tensors import open_tensors

_INDEX = "index.json"
_REMEDY = "delete the store and run clover features again"
_SHARD_BYTES, _SHARD_SECONDS = 2**28, 300.0  # of a shard; a run that is killed loses no more than one
# Texts and their characters (tokens of samples) that are sorted by length, so that little of a batch is padding; the
# states of all of them are in memory.
_TOGETHER, _SIZE_TOGETHER = 64, 2**17
_COUNTED, _SIZE_COUNTED = 512, 2**20  # texts, and their characters, from which the size is predicted
_MARGIN = 1.05  # of the free space that is asked for
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class StoreConfig:
    """What a store is made of.

    Args:
        target, texts: fingerprints of the target and of the texts.
        dtype: of the target that a store is begun with, which goes on in the same.
        hidden_state: kind of the hidden states that are kept for drafts to read, see `TargetModel.hidden_width`.
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
class _Shard:
    """A file of the store: the texts that were read when it was full, its tokens, and the hash of its bytes."""

    name: Annotated[str, Field(pattern=r"^\d{5}\.safetensors$")]
    texts: _Count
    tokens: _Count
    checksum: str


@dataclass(frozen=True)
class _Index:
    format: Literal["clover-features-1"]
    config: StoreConfig
    finished: bool
    shards: list[_Shard]


@dataclass(frozen=True, eq=False)
class StoredSample(Sample):
    """A sample whose hidden states lie in `shard`, from its position `start` on."""

    shard: _OpenShard
    start: int

    def part(self, start: int, stop: int) -> StoredSample:
        """Tokens `start` to `stop` alone."""
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
        UserError: there is no finished store, or one of its files is missing; and later, when a shard is first read,
            that its content is not what was written.
    """

    def __init__(self, path: Path):
        self.path = path
        index = _read_index(path)
        if not index.finished:
            raise UserError(f"{path} is not finished; run the same clover features command with --resume")
        self.config = index.config
        self._shards = _open_shards(path, index)
        self._ends = list(accumulate(len(shard.starts) for shard in self._shards))
        content = "".join(shard.checksum for shard in index.shards)
        self.fingerprint = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        self.tokens = sum(shard.tokens for shard in index.shards)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def load(self, row: int) -> StoredSample:
        """The window number `row`."""
        number = bisect_right(self._ends, row)
        return self._shards[number].sample(row - (self._ends[number - 1] if number else 0))

    def features(self, batch: Batch, hidden_state: str) -> Features:
        """Hidden states of a batch of this store's windows, [B, T, W] and [B, T, H] on its device; 0 on padding.

        `hidden_state`, what is read, is the kind that the store is made of, or post_norm, which all have.
        """
        rows = [
            window.shard.states(window, hidden_state)
            for window in batch.windows
            if isinstance(window, StoredSample)
        ]
        read, hidden = (
            torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True).to(batch.tokens.device)
            for part in zip(*rows, strict=True)
        )
        return Features(read, hidden)

    def check_widths(self, *widths: int) -> None:
        """UserError unless the states after the final norm have the first width, and those beside them the second."""
        for shard in self._shards:
            if shard.shapes != [(len(shard.tokens), width) for width in widths]:
                raise shard.damaged()


class _OpenShard:
    """A shard and where its windows begin; its states are read from the disk as they are needed.

    Only then is the file compared with its hash: of a large store that would take minutes before the first step. So
    half a CPU second per 256 MiB counts as time of the training, most of it in the first steps, which read all shards.

    Args:
        names: of the states that it must hold.
    """

    def __init__(self, path: Path, shard: _Shard, names: Sequence[str]):
        self.path, self._expected = path / shard.name, shard
        with open_tensors(self.path, _REMEDY) as file:
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
        """Whether dtypes and shapes are those of a shard with windows of these lengths."""
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
        """What a draft reads [T, W], and the states after the final norm [T, H]."""
        part = slice(window.start, window.start + window.size)
        hidden = self._file.get_slice("hidden")[part]
        return hidden if hidden_state == "post_norm" else self._file.get_slice("read")[part], hidden

    def damaged(self) -> UserError:
        """That the file is not what was written."""
        return UserError(f"{self.path} is damaged; {_REMEDY}")


def has_begun(path: Path) -> bool:
    """Whether the directory holds a store, finished or not."""
    return (path / _INDEX).exists()


def is_finished(path: Path) -> bool:
    """Whether the directory holds a whole store; UserError if it holds none that can be read."""
    return _read_index(path).finished


def _read_index(path: Path) -> _Index:
    content, name = read_json(path / _INDEX), str(path / _INDEX)
    config = content.get("config")
    if isinstance(config, dict) and "dtype" not in config:  # of older stores
        raise UserError(f"{path} does not say in which dtype the target ran; {_REMEDY}")
    return validated(_Index, content, name)


def _open_shards(path: Path, index: _Index) -> list[_OpenShard]:
    names = ["hidden"] if index.config.hidden_state == "post_norm" else ["hidden", "read"]
    return [_OpenShard(path, shard, names) for shard in index.shards]


def check_store(store: FeatureStore, target: TargetModel, draft: DraftModel) -> None:
    """Raise UserError unless the store was made with this target and holds what the draft reads."""
    stored, here = store.config.dtype, target.dtype_name
    comparable = stored == here or "float16" not in (stored, here)  # what is rounded twice is not
    if comparable and store.config.target != weights_fingerprint(target):
        raise UserError(
            f"the hidden states in {store.path} are another target's; give the --target that clover features was given"
        )
    kept, read = store.config.hidden_state, draft.config.hidden_state
    if read not in (kept, "post_norm"):
        raise UserError(f"the draft reads {read} states, but {store.path} holds {kept}; see --hidden-state")
    store.check_widths(target.hidden_size, *([] if kept == "post_norm" else [target.hidden_width(kept)]))


def store_bytes(target: TargetModel, texts: Texts, config: StoreConfig) -> int:
    """Bytes that the store of these texts will take, from some hundred of them that stand anywhere.

    Characters are counted in all of these, tokens in as many as are tokenized in a moment.
    """
    rows = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:_COUNTED]
    size = sum(text.size for text in map(texts.load, rows.tolist()) if text is not None)
    some, _ = texts.read_block(rows, _COUNTED, _SIZE_COUNTED)
    stored = sum(window.size for sample in texts.encode(some) for window in _windows(sample, target, config))
    tokens = stored / max(1, sum(text.size for text in some)) * size / max(1, len(rows)) * len(texts)
    kind = config.hidden_state
    width = target.hidden_size + (0 if kind == "post_norm" else target.hidden_width(kind))
    return int(tokens * (2 * width + 4 + 1))


def write_features(
    target: TargetModel,
    texts: Texts,
    config: StoreConfig,
    path: Path,
    resume: bool = False,
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
    tell_size: Callable[[int], None] = lambda size: None,
) -> None:
    """Run the target over all texts and keep its hidden states in the directory `path`, shard by shard.

    Args:
        resume: go on with what is there.
        progress: called with (texts, tokens) done so far, at first and after every few texts.
        tell_size: called beforehand with the bytes that the whole store will take.

    Raises:
        UserError: the disk has too little room, the directory is in the way or belongs to another target, other texts
            or options, another process writes it, it cannot be written, or no text holds anything to be learnt.
    """
    if not resume:
        check_output_directory(path)
    with alone_in(path):
        index = _begin(path, config, resume)
        _check_room(store_bytes(target, texts, config), path, index, tell_size)
        write_json(path / _INDEX, asdict(index))
        _write(target, texts, path, index, progress)


def _check_room(need: int, path: Path, index: _Index, tell_size: Callable[[int], None]) -> None:
    free = shutil.disk_usage(path).free
    tell_size(need)
    need -= sum((path / shard.name).stat().st_size for shard in index.shards)
    if need * _MARGIN > free:
        raise UserError(
            f"the hidden states take {need / 1e9:.1f} GB, but {path} has {free / 1e9:.1f} GB left; "
            "give fewer texts or another directory"
        )


def _write(
    target: TargetModel, texts: Texts, path: Path, index: _Index, progress: Callable[[int, int], None]
) -> None:
    """All texts from where the index ends; UserError, and no index, if none of them gives a window."""
    done = index.shards[-1].texts if index.shards else 0
    if done > len(texts):
        raise UserError(f"{path / _INDEX} is damaged; {_REMEDY}")
    tokens, saved = sum(shard.tokens for shard in index.shards), time.monotonic()
    progress(done, tokens)
    pending: list[tuple[Sample, Features]] = []
    while done < len(texts):
        loaded, read = texts.read_block(range(done, len(texts)), _TOGETHER, _SIZE_TOGETHER)
        done += read
        pending += _run(target, texts.encode(loaded), index.config)
        size = sum(_stored_bytes(features) for _, features in pending)
        due = size >= _SHARD_BYTES or time.monotonic() - saved >= _SHARD_SECONDS or done == len(texts)
        if due and pending:
            index = replace(index, shards=[*index.shards, _write_shard(path, pending, done, index)])
            write_json(path / _INDEX, asdict(index))
            tokens, pending, saved = tokens + index.shards[-1].tokens, [], time.monotonic()
        progress(done, tokens + sum(sample.size for sample, _ in pending))
    if not index.shards:
        (path / _INDEX).unlink()
        raise UserError(NOTHING_TO_LEARN)
    write_json(path / _INDEX, asdict(replace(index, finished=True)))


def _begin(path: Path, config: StoreConfig, resume: bool) -> _Index:
    if not resume:
        if has_begun(path):
            raise UserError(f"another process has begun {path}; choose another directory")
        return _Index("clover-features-1", config, False, [])
    if not has_begun(path):
        raise UserError(f"there is nothing to resume: {path / _INDEX} does not exist")
    index = _read_index(path)
    _open_shards(path, index)  # what is missing or damaged is found before the target runs for hours
    begun = asdict(index.config)
    for name, value in asdict(config).items():
        if begun[name] != value:
            other = f"{name.replace('_', ' ')} ({begun[name]})"
            raise UserError(f"{path} was begun with another {other}; resume with the same options")
    return index


def _run(
    target: TargetModel, samples: Sequence[Sample], config: StoreConfig
) -> Iterator[tuple[Sample, Features]]:
    """Every window with its states [T, W] and [T, H], in the order of the texts."""
    check_tokens(samples, target.vocab_size)
    found = [window for sample in samples for window in _windows(sample, target, config)]
    order = sorted(range(len(found)), key=lambda i: found[i].size)
    states: dict[int, Features] = {}
    numbers = iter(order)
    for group in grouped([found[i] for i in order], max(config.batch_tokens, config.max_length)):
        features = compute_features(target, collate(group).tokens.to(target.device), config.hidden_state)
        for row, (number, window) in enumerate(zip(islice(numbers, len(group)), group, strict=True)):
            wanted = read = _kept(features.hidden_target[row, : window.size])
            if config.hidden_state != "post_norm":
                read = _kept(features.hidden_input[row, : window.size])
            states[number] = Features(read, wanted)
    return ((window, states[number]) for number, window in enumerate(found))


def _windows(sample: Sample, target: TargetModel, config: StoreConfig) -> Iterator[Sample]:
    return windows(sample, min(config.max_length, target.longest_run))


def _kept(states: Tensor) -> Tensor:
    return states.to("cpu", torch.bfloat16, copy=True)


def _stored_bytes(features: Features) -> int:
    read, wanted = features.hidden_input, features.hidden_target
    return wanted.nbytes + (0 if read is wanted else read.nbytes)


def _write_shard(path: Path, pending: Sequence[tuple[Sample, Features]], texts: int, index: _Index) -> _Shard:
    name = f"{len(index.shards):05}.safetensors"
    samples = [sample for sample, _ in pending]
    tensors = {
        "lengths": torch.tensor([sample.size for sample in samples]),
        "tokens": torch.cat([sample.tokens for sample in samples]),
        "loss_mask": torch.cat([sample.loss_mask for sample in samples]),
        "hidden": torch.cat([features.hidden_target for _, features in pending]),
    }
    if index.config.hidden_state != "post_norm":
        tensors["read"] = torch.cat([features.hidden_input for _, features in pending])
    with output_file(path / name) as temporary:
        save_file(tensors, temporary)
        content = checksum(temporary)
    return _Shard(name, texts, len(tensors["tokens"]), content)
