"""Compare ratios prompt by prompt, with standard errors over prompts and over seeds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import exp, hypot, sqrt

from clover.measure.report.statistics import Estimate, Pair


@dataclass(frozen=True)
class Ratio:
    """Sum divided by sum of (part, whole), and how far each prompt and each seed pulls it away.

    Prompts and seeds have names, so that two ratios are compared prompt by prompt whatever the order they came in.

    Args:
        value: the ratio, or the difference of two; 0 of nothing is 0.
        prompts, seeds: the linearized deviations by name (Cochran, Sampling Techniques, 1977, section 6.4), so scaled
            that the sum of their squares is the variance; empty where a single one cannot tell it.
    """

    value: float
    prompts: Mapping[Hashable, float]
    seeds: Mapping[Hashable, float]

    @classmethod
    def of(cls, pairs: Mapping[tuple[Hashable, Hashable], Pair]) -> Ratio:
        """Return the ratio of pairs by (seed, prompt).

        Seeds need not have the same prompts; what the prompts of one seed alone do then counts as that seed's, too,
        so the error is rather too large than too small.

        >>> pairs = {(0, "a"): (2.0, 1.0), (0, "b"): (4.0, 1.0), (1, "a"): (4.0, 1.0), (1, "b"): (6.0, 1.0)}
        >>> Ratio.of(pairs).estimate.text()
        '4.00 ± 1.41'
        """
        total = sum(whole for _, whole in pairs.values()) or 1.0
        value = sum(part for part, _ in pairs.values()) / total
        prompts, seeds = dict[Hashable, float](), dict[Hashable, float]()
        for (seed, prompt), (part, whole) in pairs.items():
            deviation = (part - value * whole) / total
            prompts[prompt] = prompts.get(prompt, 0.0) + deviation
            seeds[seed] = seeds.get(seed, 0.0) + deviation
        return cls(float(value), _scaled(prompts), _scaled(seeds))

    def __sub__(self, other: Ratio) -> Ratio:
        """Return the difference: what both were measured on is paired, and the variances of the rest add up."""
        prompts, seeds = _difference(self.prompts, other.prompts), _difference(self.seeds, other.seeds)
        return Ratio(self.value - other.value, prompts, seeds)

    @property
    def estimate(self) -> Estimate:
        """Return the value; its error is over prompts and, where there are several, over seeds."""
        deviations = [*self.prompts.values(), *self.seeds.values()]
        return Estimate(self.value, hypot(*deviations) if deviations else None)

    @property
    def geometric(self) -> Estimate:
        """Return a geometric mean, where the pairs are (logarithm, 1)."""
        found = self.estimate
        return Estimate(exp(found.value), None if found.error is None else exp(found.value) * found.error)


def _scaled(deviations: Mapping[Hashable, float]) -> dict[Hashable, float]:
    number = len(deviations)
    factor = sqrt(number / (number - 1)) if number > 1 else 0.0
    return {name: factor * deviation for name, deviation in deviations.items() if factor}


def _difference(own: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> dict[Hashable, float]:
    return {name: own.get(name, 0.0) - other.get(name, 0.0) for name in (*own, *other)}
