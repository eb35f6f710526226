"""What commands share that make a copy of a trained draft: the draft, texts to judge it by, the new directory."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clover import options
from clover.cli.texts import REGENERATED
from clover.errors import UserError
from clover.files import output_directory

if TYPE_CHECKING:
    from clover.data import Texts
    from clover.drafts import DraftModel
    from clover.target import TargetWeights


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """The options of commands that make a changed copy of a draft."""

    output: options.Output
    draft: options.TrainedDraft = None
    target: options.Target = None
    overwrite: options.Overwrite = False
    device: options.Device = None
    trust_remote_code: options.TrustRemoteCode = False


def load_trained(given: CopyOptions) -> tuple[str, "DraftModel"]:
    """Return the draft's place, and the draft in the dtype that it is stored in, bound to its target."""
    from clover.assets import TARGET, draft_place
    from clover.drafts import load_usable
    from clover.measure.report.progress import Progress
    from clover.target import TargetModel

    if given.draft is None and given.target is not None:
        raise UserError("a target was given but no draft; give the draft that was trained for it")
    name = draft_place(given.draft)
    with Progress() as progress:
        progress.say("loading target and draft")
        target, dtype = given.target or str(TARGET), _dtype(name)
        model = TargetModel.load(target, dtype, given.device, given.trust_remote_code)
        return name, load_usable(name, model)


def save_copy(draft: "DraftModel", name: str, given: CopyOptions) -> None:
    """Write the draft, which came from `name`, and what is known of its training."""
    from clover.train.record import LOG_FILE, RECORD_FILE

    with output_directory(given.output, given.overwrite) as folder:
        draft.save_pretrained(folder)
        for record in (RECORD_FILE, LOG_FILE):
            if (Path(name) / record).is_file():
                shutil.copyfile(Path(name) / record, folder / record)


def texts_of(target: "TargetWeights", files: Sequence[str]) -> list["Texts"]:
    """Open texts, in two parts at most: files named .regenerated.jsonl hold the answers of earlier versions."""
    from clover.data import FileTexts, SampleTexts
    from clover.data.regenerated import read_regenerated

    parts: list[Texts] = []
    others = [file for file in files if not file.endswith(REGENERATED)]
    if written := [Path(file) for file in files if file.endswith(REGENERATED)]:
        parts.append(SampleTexts([sample for path in written for sample in read_regenerated(path)]))
    if others:
        given = target.require_tokenizer(), target.eos_token_ids
        parts.append(FileTexts(others, *given, vocab_size=target.vocab_size))
    return parts


def print_problems(parts: "Sequence[Texts]") -> None:
    """Say what could not be used, once texts have been read."""
    from clover.data import FileTexts

    options.print_left_out(
        [line for part in parts if isinstance(part, FileTexts) for line in part.problems.values()]
    )


def _dtype(draft: str) -> str | None:
    """Return the dtype that the draft's weights are stored in, so that the copy keeps it; None if it does not say."""
    from transformers import PretrainedConfig

    try:
        stored = PretrainedConfig.get_config_dict(draft)[0].get("dtype")
    except (OSError, ValueError):  # the loader has a message for it
        return None
    return stored if stored in ("float32", "bfloat16", "float16", "float64") else None
