"""The last step of a training: fit what a draft proposes from and what it copies to held-out texts."""

from torch import Tensor

from clover.drafts import DraftModel
from clover.drafts.vocabulary import frequent_tokens, worthwhile_size
from clover.train.config import TrainConfig
from clover.train.objective import HeldOut


def finish(draft: DraftModel, measured: HeldOut, config: TrainConfig, counts: Tensor | None) -> bool:
    """Reduce the vocabulary to the tokens that are worth their time, and set how much the draft copies from the text.

    Return whether the vocabulary is smaller now, so that `measured` is no longer true of the draft.

    Args:
        draft: the trained draft, which is changed.
        measured: what it is right about in held-out texts.
        config: `fit_vocabulary` asks for the first; shares among the draft's own options forbid the second.
        counts: Long [V], occurrences of each token in the texts; None for a draft of the whole vocabulary.
    """
    size = draft.config.draft_vocab_size
    if config.fit_vocabulary and draft.d2t is not None and counts is not None:
        order = counts[draft.d2t.cpu()].argsort(descending=True, stable=True)
        draft.reduce_vocabulary(frequent_tokens(counts, worthwhile_size(measured.hits[order])))
    guesses = None if "copy_shares" in config.draft else measured.guesses
    if guesses is not None:
        draft.fit_copies(guesses)
    return draft.config.draft_vocab_size != size
