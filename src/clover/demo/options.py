"""What the user of the demo chooses, checked before any time is spent on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clover.bench.options import BenchOptions
from clover.errors import UserError
from clover.report.output import check_outputs
from clover.report.provenance import command_line


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo; those without a word here are those of `BenchOptions`.

    Args:
        drafts: shown side by side; the embedded ones when left out.
        max_new_tokens: tokens per prompt; when left out as many, up to 128, as fit into three and a half minutes.
        temperature: of the sampled part; 0 leaves that part out.
        quiet: show nothing before the table.
    """

    target: str | None = None
    drafts: tuple[str, ...] = ()
    tree: str | None = None
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    prompts: Path | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.8
    picture: Path = Path("demo.png")
    json: Path | None = None
    html: Path | None = None
    quiet: bool = False

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> DemoOptions(drafts=("a", "b"), tree="chain:5", quiet=True).command
        'clover demo --draft a --draft b --tree chain:5 --quiet'
        """
        return command_line("demo", self, renamed={"drafts": "draft"})

    def bench(self, max_new_tokens: int) -> BenchOptions:
        """The benchmark that is shown: batch 1, one round, greedy and sampled.

        Raises:
            UserError: something would fail at the end.
        """
        if self.target is not None and not self.drafts:
            raise UserError("a target was given but no draft; give its draft, or --draft lookup")
        if self.temperature and (self.tree or "").startswith("drawn:"):
            raise UserError(
                "sampled text from a drawn tree has the distribution of plain decoding, not its tokens, and the demo "
                "compares tokens; give another tree or --temperature 0"
            )
        check_outputs(self.json, self.picture, self.html)
        shared = ("target", "prompts", "dtype", "device", "trust_remote_code")
        return BenchOptions(
            temperatures=(0.0, self.temperature) if self.temperature else (0.0,),
            max_new_tokens=self.max_new_tokens or max_new_tokens,
            max_prompts=12,
            rounds=1,
            **{name: getattr(self, name) for name in shared},
        )
