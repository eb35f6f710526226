"""Deterministic batches of texts that are tokenized only when their turn comes.

Each epoch has its own order of the texts, and reads them in blocks of about a million characters. Texts longer than
`max_length` are cut into windows. The windows of a block are sorted by length and cut into batches, so that few tokens
are padding; then the batches are shuffled. While a block is learnt, the next one is tokenized. The batch at a
`Position` depends only on the texts, the seed and the position, so resuming needs nothing else.

Shapes: B windows of a batch, T longest window of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clover.data.chat import FIRST_PREDICTED, Sample, check_tokens
from clover.data.formats import Record
from clover.data.texts import SampleTexts, Texts
from clover.errors import UserError

_BLOCK_SIZE, _BLOCK_TEXTS = 2**20, 1024  # characters (tokens of samples) and texts that are sorted together
NOTHING_TO_LEARN = (
    "no text is long enough, or none has a token to be learnt; the third token of a window is the first that a draft "
    "can learn"
)

Side = Callable[[Record | Sample], bool]  # returns True for the texts of one part of the data


@dataclass(frozen=True)
class TextBatch:
    """Right-padded texts. `tokens` Long [B, T]; `predicted_mask` Bool [B, T], tokens to learn; `lengths` Long [B].

    `windows` are the B texts of the batch, on the CPU.
    """

    tokens: Tensor
    predicted_mask: Tensor
    lengths: Tensor
    windows: tuple[Sample, ...] = ()

    def to(self, device: torch.device | str) -> TextBatch:
        """Return the batch on another device."""
        moved = (part.to(device) for part in (self.tokens, self.predicted_mask, self.lengths))
        return TextBatch(*moved, windows=self.windows)

    def opening(self, length: int) -> TextBatch:
        """Return a batch of the first `length` tokens of the first text."""
        return collate([self.windows[0].part(0, length)])


@dataclass(frozen=True)
class Position:
    """The place of a batch: its epoch, how many texts of the epoch precede its block, and its number in the block."""

    epoch: int = 0
    text: int = 0
    batch: int = 0


@dataclass(frozen=True)
class _Block:
    """The batches of `rows` texts that were sorted together, and the positions of this block and the next."""

    place: Position
    batches: list[TextBatch]
    rows: int
    following: Position


class Batches:
    """The endless sequence of training batches: `next(batches)`.

    Args:
        texts: the texts, or samples in memory.
        max_length: most tokens of a window, at least 3.
        batch_tokens: most tokens B · T of a batch, unless the batch has one window only.
        seed: decides the order.
        side: only texts for which it returns True are used.
        vocab_size: every token must be below it; None to check nothing.
        block_size: characters (tokens of samples) that are read and sorted together.

    Attributes:
        position: the position of the next batch; it can be set.

    Raises:
        UserError: from `next`, if no window holds a token to learn, or one holds a token that the target does not know.
    """

    def __init__(
        self,
        texts: Texts | Sequence[Sample],
        max_length: int,
        batch_tokens: int,
        seed: int,
        side: Side = lambda _: True,
        vocab_size: int | None = None,
        block_size: int = _BLOCK_SIZE,
    ):
        if max_length <= FIRST_PREDICTED:
            raise UserError(f"max_length is {max_length}; it must be at least 3")
        self.texts = texts if isinstance(texts, Texts) else SampleTexts(texts)
        self.max_length, self.batch_tokens, self.seed, self.side = max_length, batch_tokens, seed, side
        self.vocab_size, self.block_size = vocab_size, block_size
        self._position, self._reading = Position(), iter(())
        self._block: _Block | None = None  # the one at the position, once it is read

    @property
    def position(self) -> Position:
        """Return the place of the next batch."""
        return self._position

    @position.setter
    def position(self, place: Position) -> None:
        if self._block is not None and self._block.place != replace(place, batch=0):
            self._block = None  # it is read again from the new place
        self._position = place

    def __iter__(self) -> Iterator[TextBatch]:
        return self

    def __next__(self) -> TextBatch:
        block = self._current()
        last = block.place.epoch + 1
        while self._position.batch >= len(block.batches):
            if block.following.epoch > last + 1:
                raise UserError(NOTHING_TO_LEARN)
            self._block, self._position = next(self._reading), block.following
            block = self._block
        batch = block.batches[self._position.batch]
        self._position = replace(self._position, batch=self._position.batch + 1)
        return batch

    @property
    def epochs(self) -> float:
        """Return the number of passes over the texts so far."""
        place, block = self._position, self._current()
        rows = place.batch / max(1, len(block.batches)) * block.rows
        return place.epoch + (place.text + rows) / len(self.texts)

    def epoch(self, number: int = 0) -> Iterator[TextBatch]:
        """Yield all batches of one epoch: every window once."""
        found = False
        for block in self._read_epoch(number):
            yield from block.batches
            found = found or bool(block.batches)
        if not found:
            raise UserError(NOTHING_TO_LEARN)

    def _current(self) -> _Block:
        """Return the block at the position, and begin to read the next ones ahead."""
        if self._block is None:
            if not len(self.texts):
                raise UserError(NOTHING_TO_LEARN)
            self._reading = _ahead(self._read_from(self._position))
            self._block = next(self._reading)
        return self._block

    def _read_from(self, place: Position) -> Iterator[_Block]:
        """Yield all blocks from the one that starts at `place`, endlessly."""
        yield from self._read_epoch(place.epoch, place.text)
        for epoch in count(place.epoch + 1):
            yield from self._read_epoch(epoch)

    def _read_epoch(self, epoch: int, start: int = 0) -> Iterator[_Block]:
        """Yield the blocks of an epoch, beginning with text number `start` of its order."""
        order: Any = torch.randperm(len(self.texts), generator=self._generator(epoch, -1)).numpy()
        for texts, rows in self.texts.blocks(order[start:], _BLOCK_TEXTS, self.block_size, self.side):
            end = start + rows
            following = Position(epoch, end) if end < len(order) else Position(epoch + 1)
            yield _Block(Position(epoch, start), self._batches_of(texts, epoch, start), rows, following)
            start = end

    def _batches_of(self, texts: Sequence[Record | Sample], epoch: int, start: int) -> list[TextBatch]:
        cut = [window for sample in self.texts.encode(texts) for window in windows(sample, self.max_length)]
        if self.vocab_size is not None:
            check_tokens(cut, self.vocab_size)
        groups = grouped(sorted(cut, key=lambda window: window.size), self.batch_tokens)
        shuffled = torch.randperm(len(groups), generator=self._generator(epoch, start)).tolist()
        return [collate(groups[i]) for i in shuffled]

    def _generator(self, epoch: int, text: int) -> torch.Generator:
        seed = hash((self.seed, epoch, text)) % 2**63  # the hash of integers is the same in every process
        return torch.Generator().manual_seed(seed)


def _ahead(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Yield the blocks; a thread reads the next one while the caller uses the last."""
    reader = ThreadPoolExecutor(1, "reader")
    following = reader.submit(next, blocks)
    try:
        while True:
            block = following.result()
            following = reader.submit(next, blocks)
            yield block
    finally:
        reader.shutdown(wait=False, cancel_futures=True)


def windows(sample: Sample, max_length: int) -> Iterator[Sample]:
    """Yield consecutive windows of at most `max_length` tokens, without those in which nothing can be learnt."""
    for start in range(0, sample.size, max_length):
        window = sample.part(start, start + max_length)
        if bool(window.loss_mask[FIRST_PREDICTED:].any()):
            yield window


def grouped(windows: Sequence[Sample], tokens: int) -> list[list[Sample]]:
    """Cut windows of rising length into batches of at most `tokens` tokens, padding counted."""
    groups: list[list[Sample]] = []
    for window in windows:
        if not groups or window.size * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(window)
    return groups


def first_batches(batches: Iterator[TextBatch], tokens: int) -> Iterator[TextBatch]:
    """Yield batches until they hold this number of tokens, padding counted."""
    for batch in batches:
        yield batch
        tokens -= batch.tokens.numel()
        if tokens <= 0:
            return


def collate(windows: Sequence[Sample]) -> TextBatch:
    """Return one batch of windows, padded on the right to the longest."""
    lengths = torch.tensor([window.size for window in windows])
    tokens = pad_sequence([window.tokens.long() for window in windows], batch_first=True)
    mask = pad_sequence([window.loss_mask for window in windows], batch_first=True)
    return TextBatch(tokens, mask, lengths, tuple(windows))
