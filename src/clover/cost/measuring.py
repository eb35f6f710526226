"""Plain decoding and a draft in turn on each batch of prompts, and the interval of the speed-up over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, harmonic_mean

from torch import Tensor

from clover.compare.measuring import Measured, measure
from clover.compare.plan import PLAIN, Method
from clover.cost.intervals import Interval, interval, resample, resampled_means
from clover.drafts import DraftModel
from clover.engine import Engine
from clover.errors import UserError
from clover.interleaved import make_batches
from clover.target import TargetModel
from clover.tree import parse_tree

FEWEST_BATCHES = 6  # for an interval
_ROUNDS = 2  # each method is first once


@dataclass(frozen=True)
class MeasuringOptions:
    """How the pair is used.

    Args:
        batch_size: texts that run together.
        temperature: 0 is greedy.
        max_new_tokens: per prompt.
        batches: of prompts at most.
        tree: the draft's own if None.
    """

    batch_size: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 64
    batches: int = 16
    tree: str | None = None

    @property
    def prompts(self) -> int:
        """Prompts that are used at most."""
        return self.batches * self.batch_size


@dataclass(frozen=True)
class PairTimes:
    """One entry per batch of prompts: seconds per token of both methods (prefill included), and the draft's τ.

    Args:
        depth: of the draft's tree.
    """

    plain: tuple[float, ...]
    drafted: tuple[float, ...]
    taus: tuple[float, ...]
    depth: int

    @property
    def plain_seconds(self) -> float:
        """Seconds per token of plain decoding."""
        return fmean(self.plain)

    @property
    def speedup(self) -> Interval:
        """The speed-up with its interval over prompts."""
        plain, drafted = self.resampled()
        return interval(fmean(self.plain) / fmean(self.drafted), plain / drafted)

    @property
    def tau(self) -> float:
        """Tokens per step, the bonus token included."""
        return harmonic_mean(self.taus)

    def resampled(self) -> tuple[Tensor, Tensor]:
        """Seconds per token of both methods, Float64 [draws] each, on prompts drawn again with replacement."""
        drawn = resample(len(self.plain))
        return resampled_means(self.plain, drawn), resampled_means(self.drafted, drawn)


def measure_pair(
    target: TargetModel,
    draft: DraftModel,
    prompts: Sequence[tuple[int, ...]],
    options: MeasuringOptions,
    progress: Callable[[float], None] = lambda share: None,
) -> PairTimes:
    """Decode every batch of prompts with both methods in turn, twice.

    Args:
        prompts: token ids; those that do not fill a batch are left out.
        progress: called with the share that is done, 0 … 1.

    Raises:
        UserError: there are too few prompts for an interval, or the tree does not fit the draft.
    """
    count = min(len(prompts) // options.batch_size, options.batches)
    if count < FEWEST_BATCHES:
        raise UserError(
            f"{len(prompts)} prompts make {count} batches of {options.batch_size}; an interval needs at least "
            f"{FEWEST_BATCHES}: give more prompts, a smaller --batch-size or more --batches"
        )
    plain, drafted = Method(PLAIN), Method(str(draft.config.model_type), tree=options.tree)
    tree = None if options.tree is None else parse_tree(options.tree)
    engines = {plain: Engine(target), drafted: Engine(target, draft, tree)}
    drafter = engines[drafted].drafter
    assert drafter is not None
    found: list[tuple[Measured, Measured]] = []
    some = prompts[: count * options.batch_size]
    for batch in make_batches(
        some, options.batch_size, options.temperature, options.max_new_tokens, target.context_length
    ):
        one, other = measure(engines, [batch], _ROUNDS)
        found.append((one, other))
        progress(len(found) / count)
    return PairTimes(
        tuple(1 / one.speed for one, _ in found),
        tuple(1 / other.speed for _, other in found),
        tuple(other.tau for _, other in found),
        drafter.max_depth,
    )
