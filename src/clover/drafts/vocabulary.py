"""The part of the target's vocabulary that a draft proposes from (`draft_vocab_size`, `d2t`).

The lm_head is read once per depth of the tree. With a large vocabulary that is most of the cost of drafting. The target
supplies tokens that the draft cannot propose, so the text is the same.

`d2t`, Long [V'], is the target's token of each draft index, in rising order. (In EAGLE-3's published files it contains
differences: token = index + d2t[index].)

Shapes: V target vocabulary, V' draft vocabulary.
"""

import torch
from torch import Tensor

from clover.errors import UserError

_KEPT_HITS = 0.995
_LARGE = 16_384  # below this size, reading the lm_head takes no longer than the rest of a draft


def default_size(vocab_size: int) -> int | None:
    """Return the default V': a quarter of a large vocabulary, as in EAGLE-3 (32,000 of 128,256); None for all tokens.

    >>> default_size(49152), default_size(4096)
    (12288, None)
    """
    return vocab_size // 4 if vocab_size >= _LARGE else None


def worthwhile_size(hits: Tensor) -> int:
    """Return how many of the most frequent tokens a draft needs to lose less than 0.5 % of its hits.

    The other tokens cost time at every depth, and are hardly ever right (docs/development/log.md).
    All tokens are kept if there are too few hits to decide.

    Args:
        hits: Long [V'], how often each token was the draft's choice and right.

    >>> worthwhile_size(torch.tensor([3000, 600, 300, 80, 10, 5, 5, 0]))
    4
    """
    lost = (1 - _KEPT_HITS) * int(hits.sum())
    return len(hits) if lost < 1 else int((hits.sum() - hits.cumsum(0) > lost).sum()) + 1


def frequent_tokens(counts: Tensor, size: int) -> Tensor:
    """Return the most frequent tokens by counts Long [V], as Long [size] in rising order; of equals, the lower.

    >>> frequent_tokens(torch.tensor([5, 0, 7, 5]), 2)
    tensor([0, 2])
    """
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def check_size(size: int, vocab_size: int) -> None:
    """Raise UserError unless a draft of a target with `vocab_size` tokens can propose from `size` of them."""
    if not 1 <= size <= vocab_size:
        raise UserError(f"draft_vocab_size is {size}; it must be from 1 to the target's {vocab_size} tokens")


def check_map(d2t: Tensor, vocab_size: int) -> None:
    """Raise UserError unless d2t lists tokens below `vocab_size`, each once and in rising order."""
    if d2t.dtype != torch.long:
        raise UserError(f"the draft's d2t holds {d2t.dtype}, not token ids; {_MEND}")
    if int(d2t[0]) < 0 or int(d2t.max()) >= vocab_size:
        raise UserError(f"the draft's d2t names tokens outside the vocabulary of {vocab_size}; {_MEND}")
    if bool((d2t.diff() <= 0).any()):
        raise UserError(f"the draft's d2t does not name each token once, in rising order; {_MEND}")


_MEND = "its files are damaged: train the draft again"


def target_tokens(d2t: Tensor | None, indices: Tensor) -> Tensor:
    """Map draft indices Long [...] to the target's tokens Long [...]; d2t is None for the whole vocabulary."""
    return indices if d2t is None else d2t[indices]


def over_all_tokens(values: Tensor, d2t: Tensor | None, vocab_size: int, missing: float) -> Tensor:
    """Expand values [..., V'] of the draft's tokens to [..., V] of all the target's, with `missing` for the others.

    >>> over_all_tokens(torch.tensor([0.2, 0.8]), torch.tensor([1, 3]), 5, 0.0)
    tensor([0.0000, 0.2000, 0.0000, 0.8000, 0.0000])
    """
    if d2t is None:
        return values
    return values.new_full((*values.shape[:-1], vocab_size), missing).index_copy_(-1, d2t, values)


def draft_indices(d2t: Tensor, vocab_size: int) -> Tensor:
    """Return the index of each of the target's tokens in d2t, Long [V]; -1 for tokens that are not in it.

    >>> draft_indices(torch.tensor([1, 3]), 5)
    tensor([-1,  0, -1,  1, -1])
    """
    found = torch.full((vocab_size,), -1, dtype=torch.long, device=d2t.device)
    return found.scatter(0, d2t, torch.arange(len(d2t), device=d2t.device))
