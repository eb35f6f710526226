"""Deterministic batches of texts that are tokenized only when their turn comes.

Each epoch takes the texts in an order of its own, in blocks of about a million characters. Texts longer than
`max_length` are cut into windows; those of a block are sorted by length and cut into batches, so little is padding;
then the batches are shuffled. While a block is learnt, the next one is tokenized. What comes at a `Position` depends
on the texts, the seed and the position alone, so resuming needs nothing else.

Shapes: B windows of a batch, T longest window of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clover.data.chat import Sample, check_tokens
from clover.data.formats import Record
from clover.data.texts import SampleTexts, Texts
from clover.errors import UserError

_BLOCK_SIZE, _BLOCK_TEXTS = 2**20, 1024  # characters (tokens of samples) and texts that are sorted together
_FIRST_PREDICTED = 2  # a draft reads token 1 together with the state at token 0, and predicts token 2
NOTHING_TO_LEARN = (
    "no text is long enough, or none has a token to be learnt; the third token of a window is the first that a draft "
    "can learn"
)

Side = Callable[[Record | Sample], bool]  # whether a text belongs to this part of the data


@dataclass(frozen=True)
class Batch:
    """Right-padded texts. `tokens` Long [B, T]; `predicted_mask` Bool [B, T], tokens to learn; `lengths` Long [B].

    `windows` are the B texts that it was made of, on the CPU.
    """

    tokens: Tensor
    predicted_mask: Tensor
    lengths: Tensor
    windows: tuple[Sample, ...] = ()

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device."""
        moved = (part.to(device) for part in (self.tokens, self.predicted_mask, self.lengths))
        return Batch(*moved, windows=self.windows)

    def opening(self, length: int) -> Batch:
        """The first text alone, `length` tokens of it at most."""
        return collate([self.windows[0].part(0, length)])


@dataclass(frozen=True)
class Position:
    """The next batch: the epoch, how many texts of it came before the block, and the batch's number in the block."""

    epoch: int = 0
    text: int = 0
    batch: int = 0


@dataclass(frozen=True)
class _Block:
    batches: list[Batch]
    following: int  # text of the epoch at which the next block starts


class Batches:
    """The endless sequence of training batches: `next(batches)`.

    UserError if no window holds a token to learn, or one holds a token that is not below `vocab_size`, if given.
    Windows are `max_length` tokens at most, at least 3; B · T is at most `batch_tokens` where a batch has more than
    one. The seed decides the order. `side` says which of the texts are taken; `block_size` is how many characters
    (tokens of samples) are read and sorted together.
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
        if max_length <= _FIRST_PREDICTED:
            raise UserError(f"max_length is {max_length}; it must be at least 3")
        self.texts = texts if isinstance(texts, Texts) else SampleTexts(texts)
        self.max_length, self.batch_tokens, self.seed, self.side = max_length, batch_tokens, seed, side
        self.vocab_size, self.block_size = vocab_size, block_size
        self.position = Position()
        self._order = lru_cache(maxsize=2)(
            lambda epoch: torch.randperm(len(self.texts), generator=self._generator(epoch, -1))
        )
        self._pool = ThreadPoolExecutor(1, "tokenize")
        self._begun = lru_cache(maxsize=2)(lambda *place: self._pool.submit(self._read, *place))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        block, tried = self._block(), self.position.epoch
        while self.position.batch >= len(block.batches):
            if self.position.epoch > tried + 1:
                raise UserError(NOTHING_TO_LEARN)
            self.position = self._after(block)
            block = self._block()
        place = self.position
        self.position = Position(place.epoch, place.text, place.batch + 1)
        return block.batches[place.batch]

    @property
    def epochs(self) -> float:
        """Passes over the texts so far."""
        place, block = self.position, self._block()
        share = place.batch / max(1, len(block.batches)) * (block.following - place.text)
        return place.epoch + (place.text + share) / max(1, len(self.texts))

    def epoch(self, number: int = 0) -> Iterator[Batch]:
        """All batches of one epoch: every window once."""
        text, found = 0, False
        while text < len(self.texts):
            block = self._begun(number, text).result()
            yield from block.batches
            text, found = block.following, found or bool(block.batches)
        if not found:
            raise UserError(NOTHING_TO_LEARN)

    def _block(self) -> _Block:
        """The block at the position; the one after it is begun."""
        block = self._begun(self.position.epoch, self.position.text).result()
        after = self._after(block)
        self._begun(after.epoch, after.text)
        return block

    def _after(self, block: _Block) -> Position:
        if block.following < len(self.texts):
            return Position(self.position.epoch, block.following)
        return Position(self.position.epoch + 1)

    def _generator(self, epoch: int, text: int) -> torch.Generator:
        seed = hash((self.seed, epoch, text)) % 2**63  # of integers: always the same
        return torch.Generator().manual_seed(seed)

    def _read(self, epoch: int, start: int) -> _Block:
        rows = self._order(epoch)[start:]
        found, read = self.texts.read_block(rows, _BLOCK_TEXTS, self.block_size, self.side)
        cut = [window for sample in self.texts.encode(found) for window in windows(sample, self.max_length)]
        if self.vocab_size is not None:
            check_tokens(cut, self.vocab_size)
        groups = grouped(sorted(cut, key=lambda window: window.size), self.batch_tokens)
        shuffled = torch.randperm(len(groups), generator=self._generator(epoch, start)).tolist()
        return _Block([collate(groups[i]) for i in shuffled], start + read)


def held_out(share: float) -> Side:
    """Whether a text is in the share (0 … 1) that is held out, by a hash of it: equal texts are on the same side."""
    return lambda text: int.from_bytes(text.digest()[:8], "big") / 2**64 < share


def held_out_of(texts: Texts, share: float, max_length: int) -> Side | None:
    """Which of the texts are held out: a share of them, or one where the share holds none that can be measured.

    That one has the lowest hash of those that give a window of `max_length` tokens at most. None where nothing is to
    be held out, or nothing would be left to learn. Of a side that gives nothing, a thousand texts are tried: learning
    then says what is wrong with them.
    """

    def loaded(side: Side) -> Iterator[Record | Sample]:
        return (text for text in map(texts.load, range(len(texts))) if text is not None and side(text))

    def useful(text: Record | Sample | None) -> bool:
        return text is not None and _gives_windows(texts, text, max_length)

    if not share:
        return None
    held = held_out(share)
    for tried, text in enumerate(loaded(held)):
        if tried == _BLOCK_TEXTS or useful(text):
            others = islice(loaded(lambda text: not held(text)), _BLOCK_TEXTS)
            return held if any(map(useful, others)) else None
    rows = {text.digest(): row for row in range(len(texts)) if (text := texts.load(row)) is not None}
    found = (digest for digest in sorted(rows) if useful(texts.load(rows[digest])))
    lowest, another = next(found, None), next(found, None)
    return None if another is None else lambda text: text.digest() == lowest


def _gives_windows(texts: Texts, text: Record | Sample, max_length: int) -> bool:
    """Whether something can be learnt of a text."""
    try:
        samples = texts.encode([text])
    except UserError:  # it cannot be used; if that is true of all, learning them says so
        return False
    return any(True for sample in samples for _ in windows(sample, max_length))


def windows(sample: Sample, max_length: int) -> Iterator[Sample]:
    """Consecutive windows; those without a token that can be learnt are left out."""
    for start in range(0, sample.size, max_length):
        window = sample.part(start, start + max_length)
        if bool(window.loss_mask[_FIRST_PREDICTED:].any()):
            yield window


def grouped(windows: Sequence[Sample], tokens: int) -> list[list[Sample]]:
    """Cut windows of rising length into batches of at most `tokens` tokens, padding counted."""
    groups: list[list[Sample]] = []
    for window in windows:
        if not groups or window.size * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(window)
    return groups


def first_batches(batches: Iterator[Batch], tokens: int) -> Iterator[Batch]:
    """The first batches, as many as hold so many tokens, padding counted."""
    for batch in batches:
        yield batch
        tokens -= batch.tokens.numel()
        if tokens <= 0:
            return


def collate(windows: Sequence[Sample]) -> Batch:
    """One batch of windows, padded on the right to the longest."""
    lengths = torch.tensor([window.size for window in windows])
    tokens = pad_sequence([window.tokens.long() for window in windows], batch_first=True)
    mask = pad_sequence([window.loss_mask for window in windows], batch_first=True)
    return Batch(tokens, mask, lengths, tuple(windows))
