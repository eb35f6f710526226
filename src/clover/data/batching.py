"""Deterministic batches: what is in batch number n depends on the samples, the seed and n alone.

Texts longer than `max_length` are cut into windows. Each epoch shuffles the windows, sorts them by length within large
groups, and cuts the groups into batches of about `batch_tokens` tokens, so little of a batch is padding; then the
batches are shuffled. Resuming needs nothing but the number of the next batch.

Shapes: B windows of a batch, T longest window of the batch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from clover.data.chat import Sample
from clover.errors import UserError

_GROUP = 64  # batches that are sorted by length together
_FIRST_PREDICTED = 2  # a draft reads token 1 together with the state at token 0, and predicts token 2


@dataclass(frozen=True)
class Batch:
    """Right-padded texts. `tokens` Long [B, T]; `predicted_mask` Bool [B, T], tokens to learn; `lengths` Long [B]."""

    tokens: Tensor
    predicted_mask: Tensor
    lengths: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device."""
        return Batch(self.tokens.to(device), self.predicted_mask.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class _Window:
    sample: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Batches:
    """The endless sequence of training batches over `samples`; `batches[n]` is its n-th batch.

    Args:
        samples: the training texts.
        max_length: longest window in tokens.
        batch_tokens: upper bound of B · T; a batch has at least one window.
        seed: of the order.

    Raises:
        UserError: no window holds a token that can be learnt.
    """

    def __init__(self, samples: Sequence[Sample], max_length: int, batch_tokens: int, seed: int):
        self.samples, self.batch_tokens, self.seed = samples, batch_tokens, seed
        if max_length <= _FIRST_PREDICTED or batch_tokens < max_length:
            raise UserError(
                f"max_length {max_length} must be at least 3 and at most batch_tokens ({batch_tokens})"
            )
        self.windows = _cut(samples, max_length)
        if not self.windows:
            raise UserError(
                "no text is long enough: the third token of a window is the first that a draft can learn"
            )
        self._plan = lru_cache(maxsize=2)(self._make_plan)
        self._ends: list[int] = []  # number of the first batch after each epoch

    def __getitem__(self, number: int) -> Batch:
        epoch, index = self._locate(number)
        return self._collate(self._plan(epoch)[index])

    def epoch_length(self, epoch: int = 0) -> int:
        """Batches in an epoch (epochs can differ by a few)."""
        return len(self._plan(epoch))

    def epoch(self, number: int = 0) -> list[Batch]:
        """All batches of one epoch: every window once."""
        return [self._collate(members) for members in self._plan(number)]

    def _locate(self, number: int) -> tuple[int, int]:
        while not self._ends or self._ends[-1] <= number:
            start = self._ends[-1] if self._ends else 0
            self._ends.append(start + self.epoch_length(len(self._ends)))
        epoch = bisect_right(self._ends, number)
        return epoch, number - (self._ends[epoch - 1] if epoch else 0)

    def _make_plan(self, epoch: int) -> list[list[_Window]]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(self.windows), generator=generator).tolist()
        windows = [self.windows[i] for i in order]
        plan: list[list[_Window]] = []
        for group in _groups(windows, _GROUP * self.batch_tokens):
            plan += _groups(sorted(group, key=lambda window: window.length), self.batch_tokens, padded=True)
        return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]

    def _collate(self, members: list[_Window]) -> Batch:
        lengths = torch.tensor([window.length for window in members])
        tokens = torch.zeros(len(members), int(lengths.max()), dtype=torch.long)
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, window in enumerate(members):
            sample = self.samples[window.sample]
            tokens[row, : window.length] = sample.tokens[window.start : window.end]
            mask[row, : window.length] = sample.loss_mask[window.start : window.end]
        return Batch(tokens, mask, lengths)


def split_samples(samples: Sequence[Sample], validation_share: float) -> tuple[list[Sample], list[Sample]]:
    """Training and validation samples, parted by a hash of the text: equal texts stay together, and on one side.

    Args:
        validation_share: about this share (0 … 1) becomes validation; training never becomes empty.
    """
    train: list[Sample] = []
    validation: list[Sample] = []
    for sample in samples:
        share = int.from_bytes(_digest(sample)[:8], "big") / 2**64
        (validation if share < validation_share else train).append(sample)
    return (train, validation) if train else (validation, [])


def fingerprint(samples: Sequence[Sample]) -> str:
    """A hash of all tokens and masks, to tell whether a resumed training sees the same data."""
    whole = hashlib.blake2b(digest_size=16)
    for sample in samples:
        whole.update(_digest(sample))
    return whole.hexdigest()


def _digest(sample: Sample) -> bytes:
    content = hashlib.blake2b(sample.tokens.to(torch.int32).numpy().tobytes(), digest_size=16)
    content.update(sample.loss_mask.numpy().tobytes())
    return content.digest()


def _cut(samples: Sequence[Sample], max_length: int) -> list[_Window]:
    """Consecutive windows; those without a token that can be learnt are left out."""
    windows = []
    for i, sample in enumerate(samples):
        learnt = sample.loss_mask.nonzero().flatten()
        for start in range(0, len(sample.tokens), max_length):
            end = min(start + max_length, len(sample.tokens))
            if bool(((learnt >= start + _FIRST_PREDICTED) & (learnt < end)).any()):
                windows.append(_Window(i, start, end))
    return windows


def _groups(windows: Sequence[_Window], tokens: int, padded: bool = False) -> list[list[_Window]]:
    """Cut a sequence of windows into runs of at most `tokens` tokens, padding counted if `padded` (sorted input)."""
    groups: list[list[_Window]] = []
    used = 0
    for window in windows:
        size = window.length * (len(groups[-1]) + 1) if padded and groups else used + window.length
        if not groups or size > tokens:
            groups.append([])
            used = 0
        groups[-1].append(window)
        used += window.length
    return groups
