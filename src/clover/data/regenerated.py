"""Read the texts that `clover train --regenerate` of earlier versions wrote: tokens alone, one text per line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from clover.data.chat import Sample
from clover.validation import read_lines

_MAX_BYTES = 2**33


@dataclass(frozen=True)
class _Line:
    """A text and its place among the texts."""

    index: Annotated[int, Field(ge=0)]
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]
    loss_mask: list[Annotated[int, Field(ge=0, le=1)]]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.loss_mask):
            raise ValueError("tokens and loss_mask differ in length")


def read_regenerated(path: Path) -> list[Sample]:
    """Return the samples of a file, each text once, in order; a half-written last line is left out.

    Raises:
        UserError: the file cannot be read or is not of this kind.
    """
    texts = {
        line.index: Sample(
            torch.tensor(line.tokens, dtype=torch.int32), torch.tensor(line.loss_mask, dtype=torch.bool)
        )
        for line in read_lines(path, _Line, _MAX_BYTES)
    }
    return [texts[index] for index in sorted(texts)]
