"""Compute the hidden states of a corpus once and store them; the layout is in `clover.data.features.index`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from clover.data import Sample, Texts
from clover.data.batching import NOTHING_TO_LEARN, check_tokens, collate, grouped, windows
from clover.data.features.compute import Features, compute_features, require_finite
from clover.data.features.index import INDEX, REMEDY, Index, Shard, StoreConfig, has_begun, read_index
from clover.data.features.store import open_shards
from clover.errors import UserError
from clover.files import check_output_directory, checksum, locked_directory, output_file, write_json
from clover.target import TargetWeights

_SHARD_BYTES, _SHARD_SECONDS = 2**28, 300.0  # limits of a shard; a killed run loses at most one shard
# Texts and characters (tokens of samples) that are sorted by length, so that few tokens of a batch are padding. All
# their states are in memory at once.
_TOGETHER, _SIZE_TOGETHER = 64, 2**17
_COUNTED, _SIZE_COUNTED = 512, 2**20  # texts, and their characters, that predict the size
_MARGIN = 1.05  # the free space must be this many times the space that is needed


def store_bytes(target: TargetWeights, texts: Texts, config: StoreConfig) -> int:
    """Estimate the bytes of the store of these texts from some hundred of them, drawn at random.

    Characters are counted in all of these; tokens only in a part, because tokenizing takes longer.
    """
    rows = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:_COUNTED]
    size = sum(text.size for text in texts.read(rows.tolist()) if text is not None)
    some, _ = next(texts.blocks(rows.tolist(), _COUNTED, _SIZE_COUNTED), ([], 0))
    stored = sum(window.size for sample in texts.encode(some) for window in _windows(sample, target, config))
    tokens = stored / max(1, sum(text.size for text in some)) * size / max(1, len(rows)) * len(texts)
    kind = config.hidden_state
    width = target.hidden_size + (0 if kind == "post_norm" else target.hidden_width(kind))
    return int(tokens * (2 * width + 4 + 1))


def write_features(
    target: TargetWeights,
    texts: Texts,
    config: StoreConfig,
    path: Path,
    resume: bool = False,
    progress: Callable[[int, int], None] = lambda texts, tokens: None,
    on_size: Callable[[int], None] = lambda size: None,
) -> None:
    """Run the target over all texts and store its hidden states in the directory `path`, shard by shard.

    Args:
        resume: continue an unfinished store.
        progress: called with (texts, tokens) done so far, at the start and after every few texts.
        on_size: called at the start with the bytes that the whole store will take.

    Raises:
        UserError: the disk has too little room; `path` exists, or holds a store of another target, other texts or
            options; another process writes it; it cannot be written; or no text holds anything to learn.
    """
    if not resume:
        check_output_directory(path)
    with locked_directory(path):
        index = _begin(path, config, resume)
        _check_room(store_bytes(target, texts, config), path, index, on_size)
        write_json(path / INDEX, asdict(index))
        _write(target, texts, path, index, progress)


def _check_room(need: int, path: Path, index: Index, on_size: Callable[[int], None]) -> None:
    free = shutil.disk_usage(path).free
    on_size(need)
    need -= sum((path / shard.name).stat().st_size for shard in index.shards)
    if need * _MARGIN > free:
        raise UserError(
            f"the hidden states take {need / 1e9:.1f} GB, but {path} has {free / 1e9:.1f} GB left; "
            "give fewer texts or another directory"
        )


def _write(
    target: TargetWeights, texts: Texts, path: Path, index: Index, progress: Callable[[int, int], None]
) -> None:
    """Write the texts that the index does not have yet; UserError, and no index, if no text gives a window."""
    done = index.shards[-1].texts if index.shards else 0
    if done > len(texts):
        raise UserError(f"{path / INDEX} is damaged; {REMEDY}")
    tokens, saved = sum(shard.tokens for shard in index.shards), time.monotonic()
    progress(done, tokens)
    pending: list[tuple[Sample, Features]] = []
    for loaded, rows in texts.blocks(range(done, len(texts)), _TOGETHER, _SIZE_TOGETHER):
        done += rows
        pending += _run(target, texts.encode(loaded), index.config)
        size = sum(_stored_bytes(features) for _, features in pending)
        due = size >= _SHARD_BYTES or time.monotonic() - saved >= _SHARD_SECONDS or done == len(texts)
        if due and pending:
            index = replace(index, shards=[*index.shards, _write_shard(path, pending, done, index)])
            write_json(path / INDEX, asdict(index))
            tokens, pending, saved = tokens + index.shards[-1].tokens, [], time.monotonic()
        progress(done, tokens + sum(sample.size for sample, _ in pending))
    if not index.shards:
        (path / INDEX).unlink()
        raise UserError(NOTHING_TO_LEARN)
    write_json(path / INDEX, asdict(replace(index, finished=True)))


def _begin(path: Path, config: StoreConfig, resume: bool) -> Index:
    if not resume:
        if has_begun(path):
            raise UserError(f"another process has begun {path}; choose another directory")
        return Index("clover-features-1", config, False, [])
    if not has_begun(path):
        raise UserError(f"there is nothing to resume: {path / INDEX} does not exist")
    index = read_index(path)
    open_shards(path, index)  # find missing files before the target runs for hours
    begun = asdict(index.config)
    for name, value in asdict(config).items():
        if begun[name] != value:
            other = f"{name.replace('_', ' ')} ({begun[name]})"
            raise UserError(f"{path} was begun with another {other}; resume with the same options")
    return index


def _run(
    target: TargetWeights, samples: Sequence[Sample], config: StoreConfig
) -> Iterator[tuple[Sample, Features]]:
    """Return each window with its states [T, W] and [T, H], in the order of the texts."""
    check_tokens(samples, target.vocab_size)
    found = [window for sample in samples for window in _windows(sample, target, config)]
    order = sorted(range(len(found)), key=lambda i: found[i].size)
    states: dict[int, Features] = {}
    numbers = iter(order)
    for group in grouped([found[i] for i in order], max(config.batch_tokens, config.max_length)):
        batch = collate(group)
        features = compute_features(target, batch.tokens.to(target.device), config.hidden_state)
        require_finite(features, batch, target)
        for row, (number, window) in enumerate(zip(islice(numbers, len(group)), group, strict=True)):
            target_states = read = _kept(features.hidden_target[row, : window.size])
            if config.hidden_state != "post_norm":
                read = _kept(features.hidden_input[row, : window.size])
            states[number] = Features(read, target_states)
    return ((window, states[number]) for number, window in enumerate(found))


def _windows(sample: Sample, target: TargetWeights, config: StoreConfig) -> Iterator[Sample]:
    return windows(sample, min(config.max_length, target.longest_run))


def _kept(states: Tensor) -> Tensor:
    return states.to("cpu", torch.bfloat16, copy=True)


def _stored_bytes(features: Features) -> int:
    read, states = features.hidden_input, features.hidden_target
    return states.nbytes + (0 if read is states else read.nbytes)


def _write_shard(path: Path, pending: Sequence[tuple[Sample, Features]], texts: int, index: Index) -> Shard:
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
    return Shard(name, texts, len(tensors["tokens"]), content)
