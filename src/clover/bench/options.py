"""What the user of the benchmark chooses, checked before any time is spent on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clover.errors import UserError
from clover.report.output import check_outputs
from clover.report.provenance import command_line


@dataclass(frozen=True)
class BenchOptions:
    """Options of the benchmark; target, draft, dtype and device are those of `clover.load`.

    Args:
        prompts: file with prompts, see `clover.data.tasks`; the embedded held-out code prompts when left out.
        batch_sizes, temperatures: every method runs at each pair of them.
        trees: measured beside the draft's own tree.
        assistant: name or directory of a small model for transformers' assisted generation.
        rounds: how often every method decodes all prompts; the median counts.
        max_new_tokens: tokens per prompt.
        max_prompts: prompts at most; larger batches are filled up by taking them again.
        context: measure the cost of a step against the length of the context instead.
        no_reference: leave out transformers' `generate` and its prompt lookup.
        no_memory: leave out the peak memory.
        compile: compile the steps of our own methods; on a CPU the peak memory is then left out.
        json, picture, html: files for the metrics, the picture and the page, if wanted.
    """

    target: str | None = None
    draft: str | None = None
    prompts: Path | None = None
    batch_sizes: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    trees: tuple[str, ...] = ()
    assistant: str | None = None
    rounds: int = 5
    max_new_tokens: int = 128
    max_prompts: int = 8
    context: bool = False
    no_reference: bool = False
    no_memory: bool = False
    compile: bool = False
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    json: Path | None = None
    picture: Path | None = None
    html: Path | None = None

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> BenchOptions(target="m", draft="d", batch_sizes=(1, 4), no_memory=True).command
        'clover bench m --draft d --batch-size 1 --batch-size 4 --no-memory'
        """
        flags = {"batch_sizes": "batch-size", "temperatures": "temperature", "trees": "tree"}
        return command_line("bench", self, files="target", renamed=flags)

    def check(self) -> None:
        """Raise a UserError, before any time is spent, for what would fail at the end."""
        for name in ("batch_sizes", "temperatures"):
            if not getattr(self, name):
                raise UserError(f"{name} is empty; give at least one")
        if self.target is not None and self.draft is None and not self.context:
            raise UserError("a target was given but no draft; give its draft, or --draft lookup")
        check_outputs(self.json, self.picture, self.html)
