"""Whether sampled tokens are draws from a distribution: tests whose p-values are uniform if they are.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

ALARM = 1e-4  # chance that all tests of one audit together alarm without a reason
_LEAST = 5.0  # draws that a cell expects at least
_BINS = 20


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """The p-value of Pearson's test that counts are draws with these expectations; rare cells are taken together.

    >>> round(chi_square(torch.tensor([60, 40]), torch.tensor([50.0, 50.0])), 4)
    0.0455
    """
    counts, expected = counts.double(), expected.double()
    if bool((counts[expected <= 0] > 0).any()):
        return 0.0
    rare = expected < _LEAST
    counts = torch.cat((counts[~rare], counts[rare].sum(0, keepdim=True)))
    expected = torch.cat((expected[~rare], expected[rare].sum(0, keepdim=True)))
    kept = expected >= _LEAST  # what is rare even together says nothing
    if int(kept.sum()) < 2:
        return 1.0
    statistic = ((counts - expected).square() / expected)[kept].sum()
    return float(torch.special.gammaincc((kept.sum() - 1) / 2.0, statistic / 2))


def from_probs(probs: Iterable[tuple[float, float]]) -> float:
    """The p-value that tokens are draws, each from a distribution of its own.

    Args:
        probs: of each token with all that are as probable, and of all tokens that are more probable than it.

    Its place among them, most probable first, is uniform (probability integral transform); where in the share of its
    equals it is, is drawn by a fixed generator.
    """
    pairs = torch.tensor(list(probs), dtype=torch.float64).reshape(-1, 2)
    inside = torch.rand(len(pairs), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = (pairs[:, 1] + inside * pairs[:, 0]).clamp(0, 1 - 1e-9)
    bins = max(min(_BINS, len(pairs) // 10), 1)
    counts = (places * bins).long().bincount(minlength=bins)
    return chi_square(counts, torch.full((bins,), len(pairs) / bins))


def two_samples(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """The p-value that two samples are of one distribution: a chi-square test of homogeneity."""
    own, other = Counter(first), Counter(second)
    both, total = own + other, len(first) + len(second)
    least = _LEAST * total / max(min(len(first), len(second)), 1)
    cells = [name for name, count in both.items() if count >= least]
    rows = [[sample[name] for name in cells] for sample in (own, other)]
    table = torch.tensor(
        [[*row, size - sum(row)] for row, size in zip(rows, (len(first), len(second)), strict=True)]
    ).double()
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / max(total, 1)
    kept = expected.amin(0) >= _LEAST
    if int(kept.sum()) < 2:
        return 1.0
    statistic = ((table - expected).square() / expected)[:, kept].sum()
    return float(torch.special.gammaincc((kept.sum() - 1) / 2.0, statistic / 2))


def holm(p_values: Sequence[float]) -> float:
    """The smallest p-value after Holm's correction, which is Bonferroni's: below a level with at most that chance.

    >>> holm([0.01, 0.5]), holm([])
    (0.02, 1.0)
    """
    return min([1.0, *(len(p_values) * value for value in p_values)])
