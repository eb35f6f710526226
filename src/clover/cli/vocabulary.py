"""``clover vocabulary``: let a trained draft propose from the frequent tokens only."""

import sys
from typing import Annotated

import typer

from clover import options
from clover.cli.trained import load_trained, samples_of, save_copy
from clover.errors import UserError
from clover.files import check_output_directory


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
    draft: options.TrainedDraft = None,
    target: options.Target = None,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Make a copy of a draft that proposes from the most frequent tokens of some texts: faster, as lossless."""
    from clover.data import token_counts
    from clover.drafts.vocabulary import check_size, frequent_tokens

    check_output_directory(output, overwrite)
    name, whole = load_trained(draft, target, device, trust_remote_code)
    model = whole.target
    check_size(size, model.vocab_size)
    if not whole.trainable:
        raise UserError(f"{name} has no lm_head to read less of")
    counts = token_counts(samples_of(model, data), model.vocab_size)
    if not counts.sum():
        raise UserError("the texts hold no token that is learnt; give others")
    if whole.d2t is not None and size > len(whole.d2t):
        print(f"{name} proposes from {len(whole.d2t):,} tokens now; more take longer", file=sys.stderr)
    tokens = frequent_tokens(counts, size)
    whole.reduce_vocabulary(tokens)
    save_copy(whole, name, output, overwrite)
    share = float(counts[tokens].sum() / counts.sum())
    print(
        f"{output}: proposes from {size:,} of {model.vocab_size:,} tokens, {share:.1%} of those in the texts"
    )
