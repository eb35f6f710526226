"""What commands that read training text share: their options, the target, and texts that it writes anew."""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clover import options
from clover.errors import UserError
from clover.files import read_json, write_json
from clover.options import panel

if TYPE_CHECKING:
    from clover.data import FileTexts, Sample
    from clover.regenerate import RegenerateConfig
    from clover.target import TargetModel

_SECONDS = ".seconds.json"  # ends the name of the file that says how long the written texts took

_given = panel()
MoreData = Annotated[list[str] | None, typer.Argument(metavar="FILE", help="More files of --data.")]
Regenerate = Annotated[
    bool,
    _given("First let the target write the answers itself, in place of the data's.", "--regenerate"),
]
RegenerateMinutes = Annotated[
    float | None,
    _given("Stop writing after this time and take the texts there are.", metavar="M", min=0),
]
BatchSize = Annotated[
    int,
    _given("Texts that --regenerate writes together; less takes less memory.", metavar="N", min=1),
]


@dataclass(frozen=True)
class WrittenTexts:
    """What the target has written: the samples, and the seconds it took, interrupted runs included."""

    samples: "list[Sample]"
    seconds: float


def load_target(
    name: str | None, dtype: str | None, device: str | None, trust_remote_code: bool
) -> "TargetModel":
    """The target of a command, the embedded one by default; in the dtype that is faster here if none is given.

    Raises:
        UserError: it cannot be loaded, or has no tokenizer.
    """
    from clover.assets import TARGET
    from clover.target import TargetModel

    options.hide_loading_bars()
    target = TargetModel.load(
        name or str(TARGET), dtype=dtype or "fastest", device=device, trust_remote_code=trust_remote_code
    )
    if target.tokenizer is None:
        raise UserError(f"the target {name} has no tokenizer, which training texts need")
    return target


def open_texts(target: "TargetModel", files: Iterable[str], stand_ins: bool) -> "FileTexts":
    """The texts of files; `stand_ins` as for `FileTexts`."""
    from clover.data import FileTexts

    assert target.tokenizer is not None
    return FileTexts(files, target.tokenizer, target.eos_token_ids, stand_ins)


def written_path(target: "TargetModel", texts: "FileTexts", rules: "RegenerateConfig", output: Path) -> Path:
    """The file beside `output` in which the target writes these texts by these rules.

    So named, a run with another target, other data or other options never takes this one's answers.
    """
    from clover.regenerate import written_name

    name = written_name(target, texts.fingerprint, rules)
    return output.with_name(f"{output.name}.{name}.regenerated.jsonl")


def has_written(output: Path) -> bool:
    """Whether an interrupted run has begun to write texts beside `output`."""
    from glob import escape

    return any(output.parent.glob(f"{escape(output.name)}.*.regenerated.jsonl"))


def write_anew(
    target: "TargetModel",
    texts: "FileTexts",
    rules: "RegenerateConfig",
    path: Path,
    resume: bool = False,
    finished: bool = False,
) -> WrittenTexts:
    """Let the target write the answers into a file, which is continued where it is there.

    Args:
        path: of `written_path`.
        resume: the file must be there.
        finished: take what it holds.
    """
    from clover.regenerate import read_regenerated, regenerate
    from clover.report.progress import Progress

    if resume and not path.exists():
        raise UserError(
            f"there is nothing to resume: {path} does not exist; resume with the same target, data and options"
        )
    before, started = _seconds(path), time.monotonic()
    if finished:
        return WrittenTexts(read_regenerated(path), before)
    if path.exists():
        print(f"goes on from the texts in {path}; delete it to write all anew", file=sys.stderr)
    with Progress() as progress:
        progress.say("the target writes")
        progress.begin(1.0)

        def show(written: int, tokens: int) -> None:
            seconds = time.monotonic() - started
            shares = [written / len(texts), seconds / (60 * rules.max_minutes) if rules.max_minutes else 0.0]
            progress.reach(max(shares), f"the target writes: {written:,} texts, {tokens:,} tokens")
            write_json(path.with_suffix(_SECONDS), {"seconds": before + seconds})

        samples = regenerate(target, texts, rules, path, show)
    return WrittenTexts(samples, _seconds(path))


def _seconds(path: Path) -> float:
    """Time that was spent on writing the texts in `path`, as far as it was noted beside them."""
    noted = path.with_suffix(_SECONDS)
    return float(read_json(noted).get("seconds", 0.0)) if path.exists() and noted.exists() else 0.0
