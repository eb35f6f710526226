"""Tests whether sampled tokens are draws from a distribution; if they are, the p-values are uniform.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from scipy import stats
from torch import Tensor

ALARM = 1e-4  # chance that all tests of one audit together raise an alarm without a reason
_LEAST = 5.0  # draws that a cell of a chi-square test expects at least
_BINS = 20


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """Return the p-value of Pearson's test that counts [V] are draws with these expectations [V].

    Cells that expect few draws are taken together.

    >>> round(chi_square(torch.tensor([60, 40]), torch.tensor([50.0, 50.0])), 4)
    0.0455
    """
    counts, expected = counts.double(), expected.double()
    if bool((counts[expected <= 0] > 0).any()):
        return 0.0
    order = expected.argsort()
    rare = (
        int((expected[order].cumsum(0) < _LEAST).sum()) + 1
    )  # the first cells, which expect enough together
    rare = max(rare, int((expected < _LEAST).sum()))
    cells = [
        torch.cat((part[order[:rare]].sum(0, keepdim=True), part[order[rare:]]))
        for part in (counts, expected)
    ]
    if len(cells[0]) < 2:
        return 1.0
    scale = cells[0].sum() / cells[1].sum()  # 1 but for rounding
    return float(stats.chisquare(cells[0], cells[1] * scale).pvalue)


def uniform_places(probs: Iterable[tuple[float, float]]) -> float:
    """Return the p-value that tokens are draws, each from a distribution of its own.

    The place of a token among all, most probable first, is uniform (probability integral transform).

    Args:
        probs: of each token, together with all that are as probable, and of all tokens that are more probable. The
            place within the share of its equals is drawn by a fixed generator.
    """
    pairs = torch.tensor(list(probs), dtype=torch.float64).reshape(-1, 2)
    inside = torch.rand(len(pairs), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    places = (pairs[:, 1] + inside * pairs[:, 0]).clamp(0, 1 - 1e-9)
    bins = max(min(_BINS, len(pairs) // 10), 1)
    return float(stats.chisquare((places * bins).long().bincount(minlength=bins)).pvalue) if bins > 1 else 1.0


def two_samples(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Return the p-value that two samples come from one distribution: a chi-square test of homogeneity."""
    samples = Counter(first), Counter(second)
    total = samples[0] + samples[1]
    least = _LEAST * (len(first) + len(second)) / max(min(len(first), len(second)), 1)
    common = [name for name, count in total.items() if count >= least]
    rare = [name for name in total if total[name] < least]
    groups = [*([name] for name in common), rare]
    groups = [group for group in groups if sum(total[name] for name in group) >= least]
    if len(groups) < 2:
        return 1.0
    table = [[sum(sample[name] for name in group) for group in groups] for sample in samples]
    result: Any = stats.chi2_contingency(table, correction=False)
    return float(result.pvalue)
