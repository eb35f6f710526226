"""``clover vocabulary``: let a trained draft propose from the frequent tokens only."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clover import options
from clover.errors import UserError
from clover.files import check_output_directory, output_directory

if TYPE_CHECKING:
    from torch import Tensor

    from clover.target import TargetModel

_RECORDS = ("training_config.json", "training_log.jsonl")  # what the training left beside the weights


def vocabulary(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="Texts whose tokens are counted: .txt, .jsonl, .json or .parquet; may be given several times. Best "
            "is what the target wrote for the training (OUTPUT.….regenerated.jsonl).",
        ),
    ],
    size: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens that the draft shall propose from.")],
    output: options.Output,
    draft: Annotated[
        str | None, typer.Argument(metavar="DRAFT", help="Trained draft: a directory or a name on the hub.")
    ] = None,
    target: options.Target = None,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Make a copy of a draft that proposes from the most frequent tokens of some texts: faster, as lossless."""
    from clover.assets import TARGET, draft_place
    from clover.drafts import load_draft
    from clover.drafts.vocabulary import check_size, frequent_tokens
    from clover.target import TargetModel

    if draft is None and target is not None:
        raise UserError("a target was given but no draft; give the draft that was trained for it")
    check_output_directory(output, overwrite)
    options.hide_loading_bars()
    name = draft_place(draft)
    model = TargetModel.load(
        target or str(TARGET), dtype=_dtype(name), device=device, trust_remote_code=trust_remote_code
    )
    check_size(size, model.vocab_size)
    whole = load_draft(name, model)
    if not whole.trainable:
        raise UserError(f"{name} has no lm_head to read less of")
    counts = _counts(model, data)
    if whole.d2t is not None and size > len(whole.d2t):
        print(f"{name} proposes from {len(whole.d2t):,} tokens now; more take longer", file=sys.stderr)
    tokens = frequent_tokens(counts, size)
    whole.reduce_vocabulary(tokens)
    with output_directory(output, overwrite) as folder:
        whole.save_pretrained(folder)
        _keep_records(Path(name), folder)
    share = float(counts[tokens].sum() / counts.sum())
    print(
        f"{output}: proposes from {size:,} of {model.vocab_size:,} tokens, {share:.1%} of those in the texts"
    )


def _keep_records(draft: Path, folder: Path) -> None:
    for record in _RECORDS:
        if (draft / record).is_file():
            shutil.copyfile(draft / record, folder / record)


def _dtype(draft: str) -> str | None:
    """The dtype that the draft's weights are stored in, so that the copy keeps it; None if it does not say."""
    from transformers import PretrainedConfig

    try:
        stored = PretrainedConfig.get_config_dict(draft)[0].get("dtype")
    except (OSError, ValueError):  # the loader has a message for it
        return None
    return stored if stored in ("float32", "bfloat16", "float16", "float64") else None


def _counts(target: "TargetModel", files: Sequence[str]) -> "Tensor":
    """How often each token stands in the files, Long [V]."""
    from clover.data import FileTexts, token_counts
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
    counts = token_counts(samples, target.vocab_size)
    if not counts.sum():
        raise UserError("the texts hold no token that is learnt; give others")
    return counts
