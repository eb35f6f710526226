"""What the user of the demo chooses, checked before any time is spent on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clover import assets
from clover.errors import UserError
from clover.files import check_output_file, explain, read_json
from clover.pictures import check_picture
from clover.provenance import command_line

_EMBEDDED_PROMPTS = 12


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo; target, draft, tree, dtype and device are those of `clover.load`.

    Args:
        prompts: file with prompts, a JSON object {"prompts": [...]} or text with one prompt per line; the held-out
            code prompts of the embedded target when left out.
        max_new_tokens: tokens per prompt; when left out as many, up to 128, as fit into two minutes.
        temperature: of the sampled part; 0 leaves that part out.
        picture: file to draw; its ending chooses among PNG, PDF and SVG.
        json: file for the figures, if wanted.
        quiet: show nothing before the table.
    """

    target: str | None = None
    draft: str | None = None
    tree: str | None = None
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    prompts: Path | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.8
    picture: Path = Path("demo.png")
    json: Path | None = None
    quiet: bool = False

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> DemoOptions(tree="chain:5", quiet=True).command
        'clover demo --tree chain:5 --quiet'
        """
        return command_line("demo", self)

    def check_outputs(self) -> None:
        """Raise a UserError if the picture or the JSON file could not be written at the end."""
        check_picture(self.picture)
        if self.json is not None:
            check_output_file(self.json)

    def read_prompts(self) -> list[str]:
        """Read the prompts.

        Raises:
            UserError: the file cannot be read, or holds no prompts.
        """
        if self.prompts is not None:
            return _read(self.prompts)
        if not assets.HELD_OUT_PROMPTS.is_file():
            raise UserError(
                "the embedded prompts are missing; give --prompts FILE, or make them with `clover recipe`"
            )
        return _read(assets.HELD_OUT_PROMPTS)[:_EMBEDDED_PROMPTS]


def _read(path: Path) -> list[str]:
    if path.suffix.lower() != ".json":
        found = [line for line in _text(path).splitlines() if line.strip()]
    else:
        found = read_json(path).get("prompts")
        if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
            raise UserError(f'{path} must hold {{"prompts": [...]}}, a list of texts that are not empty')
    if not found:
        raise UserError(f"{path} holds no prompts; give at least one")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {explain(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
