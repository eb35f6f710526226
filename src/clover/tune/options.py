"""What the user of `clover tune` chooses, checked before any time is spent on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clover import assets
from clover.drafting.tuning import FILE_NAME, read_tuning
from clover.errors import UserError
from clover.files import check_output_file
from clover.report.output import check_outputs
from clover.report.provenance import command_line

_FEWEST_NEW_TOKENS = 2


@dataclass(frozen=True)
class TuneOptions:
    """What to tune for; target, draft, dtype and device are those of `clover.load`.

    Args:
        files: the user's prompts, see `clover.data.tasks`; the embedded development prompts when left out.
        batch_sizes: texts that run together.
        temperature: at which texts are written; 0 is greedy.
        max_new_tokens: tokens per prompt.
        max_prompts: prompts at most, spread over their groups.
        max_minutes: time for all of it, loading left out; what is begun is finished.
        output: the file; `tuning.json` in the draft's directory when left out.
        json, picture: files for the numbers and for the picture, if wanted.
    """

    files: tuple[str, ...] = ()
    target: str | None = None
    draft: str | None = None
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    temperature: float = 0.0
    max_new_tokens: int = 128
    max_prompts: int = 24
    max_minutes: float = 10.0
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    output: Path | None = None
    json: Path | None = None
    picture: Path | None = None

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> TuneOptions(files=("a.jsonl",), batch_sizes=(1, 8)).command
        'clover tune a.jsonl --batch-size 1 --batch-size 8'
        """
        return command_line("tune", self, files="files", renamed={"batch_sizes": "batch-size"})

    @property
    def tuning_file(self) -> Path:
        """The file that is written.

        Raises:
            UserError: no file was named, and the draft is not in a directory that can be written.
        """
        if self.output is not None:
            return self.output
        directory = Path(assets.draft_place(self.draft))
        if not directory.is_dir():
            raise UserError(
                f"the draft {self.draft} is not a directory to save the tuning in; give --output FILE"
            )
        if not os.access(directory, os.W_OK):
            raise UserError(f"{directory} cannot be written; give --output FILE")
        return directory / FILE_NAME

    def check(self) -> None:
        """Raise a UserError, before any time is spent, for what would fail at the end."""
        for size in self.batch_sizes:
            if size < 1:
                raise UserError(f"batch_size is {size}; it must be at least 1")
        if not self.batch_sizes:
            raise UserError("there is no batch size to tune for; give at least one")
        if self.max_new_tokens < _FEWEST_NEW_TOKENS:
            raise UserError(
                f"max_new_tokens is {self.max_new_tokens}; it must be at least {_FEWEST_NEW_TOKENS}"
            )
        if not self.max_minutes > 0:
            raise UserError(f"max_minutes is {self.max_minutes:g}; it must be more than 0")
        file = self.tuning_file
        check_output_file(file)
        if file.exists():
            read_tuning(file)  # its other entries are kept
        check_outputs(json=self.json, picture=self.picture)
