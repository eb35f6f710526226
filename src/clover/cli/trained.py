"""What commands share that make a copy of a trained draft: the draft, texts to judge it by, the new directory."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clover import options
from clover.errors import UserError
from clover.files import output_directory

if TYPE_CHECKING:
    from clover.data import Sample
    from clover.drafts import DraftModel
    from clover.target import TargetModel

_RECORDS = ("training_config.json", "training_log.jsonl")  # what the training left beside the weights


def load_trained(
    draft: str | None, target: str | None, device: str | None, trust_remote_code: bool
) -> tuple[str, "DraftModel"]:
    """The draft's place, and the draft in the dtype that it is stored in, bound to its target."""
    from clover.assets import TARGET, draft_place
    from clover.drafts import load_draft
    from clover.target import TargetModel

    if draft is None and target is not None:
        raise UserError("a target was given but no draft; give the draft that was trained for it")
    options.hide_loading_bars()
    name = draft_place(draft)
    model = TargetModel.load(
        target or str(TARGET), dtype=_dtype(name), device=device, trust_remote_code=trust_remote_code
    )
    return name, load_draft(name, model)


def save_copy(draft: "DraftModel", name: str, output: Path, overwrite: bool) -> None:
    """Write the draft, which came from `name`, and what is known of its training."""
    with output_directory(output, overwrite) as folder:
        draft.save_pretrained(folder)
        for record in _RECORDS:
            if (Path(name) / record).is_file():
                shutil.copyfile(Path(name) / record, folder / record)


def samples_of(target: "TargetModel", files: Sequence[str]) -> list["Sample"]:
    """The texts of files, of which those named .regenerated.jsonl hold what a target wrote for a training."""
    from clover.data import FileTexts
    from clover.data.batching import check_tokens
    from clover.regenerate import read_regenerated

    written = [file for file in files if file.endswith(".regenerated.jsonl")]
    samples = [sample for file in written for sample in read_regenerated(Path(file))]
    others = [file for file in files if file not in written]
    if others:
        if target.tokenizer is None:
            raise UserError("the target has no tokenizer, which texts need")
        texts = FileTexts(others, target.tokenizer, target.eos_token_ids)
        samples += texts
        options.tell_left_out(texts.problems.values())
    check_tokens(samples, target.vocab_size)
    return samples


def _dtype(draft: str) -> str | None:
    """The dtype that the draft's weights are stored in, so that the copy keeps it; None if it does not say."""
    from transformers import PretrainedConfig

    try:
        stored = PretrainedConfig.get_config_dict(draft)[0].get("dtype")
    except (OSError, ValueError):  # the loader has a message for it
        return None
    return stored if stored in ("float32", "bfloat16", "float16", "float64") else None
