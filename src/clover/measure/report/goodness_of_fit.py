"""Test whether sampled tokens are draws from a distribution. If they are, the p-values are uniform.

Shapes: R samples, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import torch
from scipy import stats
from torch import Tensor

_LEAST = 5.0  # the fewest expected draws in a cell of a chi-square test
_BINS = 20


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """Return the p-value of Pearson's test that counts [R, V] are draws with these expectations [R, V].

    For R = 2 the expectations come from both samples together. Cells with few expected draws are merged.

    >>> round(chi_square(torch.tensor([[60, 40]]), torch.tensor([[50.0, 50.0]])), 4)
    0.0455
    """
    least = expected.double().amin(0)
    order = least.argsort()
    rare = max(int((least[order].cumsum(0) < _LEAST).sum()) + 1, int((least < _LEAST).sum()))
    found, mean = (
        torch.cat((cells[:, order[:rare]].sum(1, keepdim=True), cells[:, order[rare:]]), 1)
        for cells in (counts.double(), expected.double())
    )
    statistic = float(((found - mean).square() / mean).sum())
    return float(stats.chi2.sf(statistic, found.shape[1] - 1)) if found.shape[1] > 1 else 1.0


def two_samples(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Return the p-value that two samples come from one distribution: a chi-square test of homogeneity."""
    samples, names = (Counter(first), Counter(second)), list(dict.fromkeys((*first, *second)))
    counts = torch.tensor([[sample[name] for name in names] for sample in samples], dtype=torch.float64)
    return chi_square(counts, counts.sum(1, keepdim=True) * counts.sum(0) / counts.sum())


def uniform_places(probs: Iterable[tuple[float, float]]) -> float:
    """Return the p-value of the test that tokens are draws, each from its own distribution.

    The place of a token in the cumulative distribution, the most probable first, is uniform (probability integral
    transform). `probs` are as in `Rules.tail_masses`. A fixed generator draws the place among equally probable tokens.
    """
    pairs = torch.tensor(list(probs), dtype=torch.float64).reshape(-1, 2)
    inside = torch.rand(len(pairs), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = (pairs[:, 1] + inside * pairs[:, 0]).clamp(0, 1 - 1e-9)
    bins = max(min(_BINS, len(pairs) // 10), 1)
    counts = (places * bins).long().bincount(minlength=bins)[None]
    return chi_square(counts, torch.full((1, bins), len(pairs) / bins, dtype=torch.float64))
