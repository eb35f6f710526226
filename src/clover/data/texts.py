"""Sources of training texts: files, whose records are tokenized when they are needed, or samples in memory."""

import hashlib
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from clover.data.chat import Sample, encode_records
from clover.data.formats import Record, parse_record
from clover.data.rows import open_rows
from clover.errors import UserError
from clover.measure.report.words import left_out

_CHECKED = 1000  # records of each file that are checked before anything else is done
_FEWEST = 0.01  # the share of these that must be usable
_TOGETHER, _SIZE_TOGETHER = 256, 2**20  # texts and characters (tokens of samples) that are read at a time


class Texts(ABC):
    """Training texts by number, which are read and tokenized only when they are needed.

    A resumed training compares the hash `fingerprint`, to see the same data.
    """

    fingerprint: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of texts, including those that cannot be used."""

    @abstractmethod
    def __getitem__(self, row: int) -> Record | Sample | None:
        """Return the text of a row; None if it cannot be used."""

    def encode(self, texts: Sequence[Record | Sample]) -> list[Sample]:
        """Tokenize texts, in order; samples stay as they are."""
        return [text for text in texts if isinstance(text, Sample)]

    @property
    def left_out(self) -> str:
        """Say how many of the texts read so far cannot be used, and why the first cannot; empty if all can."""
        return ""

    def read(self, rows: Sequence[int]) -> Iterator[Record | Sample | None]:
        """Yield the texts of these rows, in order."""
        return map(self.__getitem__, rows)

    def blocks(
        self,
        rows: Sequence[int],
        max_texts: int,
        max_size: int,
        side: Callable[[Record | Sample], bool] = lambda _: True,
    ) -> Iterator[tuple[list[Record | Sample], int]]:
        """Yield the texts of these rows in blocks, each with the number of rows that were read for it.

        Args:
            rows: the rows, in the order of reading.
            max_texts: most texts of a block.
            max_size: a block is full when it has this many characters (tokens of samples).
            side: only texts for which it returns True are in the blocks.
        """
        block, size, read = list[Record | Sample](), 0, 0
        for text in self.read(rows):
            read += 1
            if text is not None and side(text):
                block.append(text)
                size += text.size
            if len(block) == max_texts or size >= max_size:
                yield block, read
                block, size, read = [], 0, 0
        if read:
            yield block, read

    def __iter__(self) -> Iterator[Sample]:
        """Yield all usable texts in order, each tokenized when it is needed."""
        for block, _ in self.blocks(range(len(self)), _TOGETHER, _SIZE_TOGETHER):
            yield from self.encode(block)


class SampleTexts(Texts):
    """Samples in memory."""

    def __init__(self, samples: Sequence[Sample]):
        self._samples, self.fingerprint = samples, fingerprint(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, row: int) -> Sample:
        return self._samples[row]


class FileTexts(Texts):
    """The records of files (see `clover.data.formats`) as training texts.

    Records that `parse_record` or `encode_records` refuses are left out and noted in `problems`. UserError if there is
    no file, one cannot be read, or hardly any of its first thousand records can be used. `encode` raises UserError if
    nothing of the first texts can be learnt.

    Args:
        eos_token_ids: the tokens on which the target stops; the tokenizer's own end-of-text token always counts.
        vocab_size: texts with a token that is not below it are left out; None to keep all.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int] = (),
        vocab_size: int | None = None,
    ):
        self.tokenizer, self.eos_token_ids = tokenizer, tuple(eos_token_ids)
        self.vocab_size = vocab_size
        self.problems: dict[str, str] = {}
        self._checked = False
        if not (names := list(map(str, paths))):
            raise UserError("there are no texts; name at least one file")
        self._files = [open_rows(name) for name in names]
        self._ends = list(accumulate(rows.count for rows in self._files))
        self._read = bytearray(len(self))  # 1 for each row that was looked at
        for name, end, rows in zip(names, self._ends, self._files, strict=True):
            self._look_at(name, range(end - rows.count, end)[:_CHECKED])
        # False stands for an option of earlier versions: the hash must equal that in existing checkpoints.
        options = (False, self.eos_token_ids, str(tokenizer.chat_template), len(tokenizer))
        self.fingerprint = _hash(repr(options).encode(), *(rows.probe() for rows in self._files)).hex()

    def _look_at(self, name: str, rows: Sequence[int]) -> None:
        """Raise UserError with the first problem if hardly any of these records can be used."""
        before = len(self.problems)
        used = sum(self[row] is not None for row in rows)
        if used >= max(1, _FEWEST * len(rows)):
            return
        problem = list(self.problems.values())[before]
        only = f"{name}: only {used} of the first {len(rows):,} records can be used; the first that cannot: "
        raise UserError((only if used else "") + problem)

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples in the order of the files, tokenized as they are needed.

        UserError at the end if nothing could be learnt from any text.
        """
        for block, _ in self.blocks(range(len(self)), _TOGETHER, _SIZE_TOGETHER):
            samples = self._encode(block)
            self._checked = self._checked or bool(samples)
            yield from samples
        self._check(())

    def records(self) -> Iterator[Record]:
        """Yield all usable records in the order of the files, each read when it is needed."""
        return (text for text in self.read(range(len(self))) if isinstance(text, Record))

    @property
    def looked_at(self) -> int:
        """Return how many texts were read so far."""
        return self._read.count(1)

    @property
    def left_out(self) -> str:
        return left_out(self.problems.values(), self.looked_at)

    def __getitem__(self, row: int) -> Record | None:
        self._read[row] = 1
        file = bisect_right(self._ends, row)
        try:
            return parse_record(*self._files[file].read(row - (self._ends[file - 1] if file else 0)))
        except UserError as error:
            self.problems[str(row)] = str(error)
            return None

    def encode(self, texts: Sequence[Record | Sample]) -> list[Sample]:
        samples = self._encode(texts)
        if texts:
            self._check(samples)
        return samples

    def _check(self, samples: Sequence[Sample]) -> None:
        """Raise UserError if nothing can be learnt, neither from these texts nor from any before."""
        self._checked = self._checked or bool(samples)
        if not self._checked:
            raise UserError(
                f"nothing can be learnt from the texts; the first: {next(iter(self.problems.values()))}; texts without "
                "answers need --regenerate or `clover write`"
            )

    def _encode(self, texts: Sequence[Record | Sample]) -> list[Sample]:
        records = [text for text in texts if isinstance(text, Record)]
        return encode_records(self.tokenizer, records, self.eos_token_ids, self._leave_out, self.vocab_size)

    def _leave_out(self, record: Record, error: UserError) -> None:
        self.problems[record.where] = f"{record.where}: {error}"


def fingerprint(samples: Sequence[Sample]) -> str:
    """Return a hash of all tokens and masks. A resumed training compares it, to see the same data."""
    return _hash(*(sample.digest() for sample in samples)).hex()


def token_counts(samples: Iterable[Sample], vocab_size: int) -> Tensor:
    """Count how often each token is learnt, Long [vocab_size]; the target writes no other tokens."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for sample in samples:
        counts += sample.tokens[sample.loss_mask].long().bincount(minlength=vocab_size)
    return counts


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
