"""Measure what a decoding step costs on this machine, and compute the τ that a speed-up needs.

A step that emits τ tokens takes a + b · τ seconds, because accepted tokens are kept in the caches, and committed to
the draft.
So for texts of N new tokens

    speed-up(τ) = (prefill + N · plain step) / (prefill with draft + N / τ · (a + b · τ)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median

import numpy as np

from clover.drafting import PLAIN_DRAFTER, CommittedInput, DraftInput, StaticDrafter, StaticTree
from clover.drafts import DraftModel
from clover.engine import Engine, Request
from clover.measure.session import PLAIN
from clover.measure.step_timing import Step, time_in_turn
from clover.measure.timing import decode
from clover.target import TargetWeights
from clover.tree import TokenTree, TreeShape

_STARTS = 5  # times that the prompts alone are run
_LEAST, _MOST = 0.1, 0.95  # chance that a token on the forced path is right, drawn anew for each step


@dataclass(frozen=True)
class PlainCost:
    """Seconds of plain decoding of one batch: prefill of all prompts, and a step, a token of each sequence."""

    batch_size: int
    new_tokens: int
    prefill: float
    step: float

    @property
    def seconds(self) -> float:
        """Return the seconds of whole texts."""
        return self.prefill + self.new_tokens * self.step

    @property
    def token_seconds(self) -> float:
        """Return the seconds per token of whole texts."""
        return self.seconds / (self.new_tokens * self.batch_size)


@dataclass(frozen=True)
class TreeCost:
    """Seconds of decoding one batch with a tree, `fixed + per_token * tau` a step; τ is at most `depth` + 1."""

    plain: PlainCost
    tree: str
    nodes: int
    depth: int
    prefill: float
    fixed: float
    per_token: float
    steps: int

    def step(self, tau: float) -> float:
        """Return the seconds of a step that emits so many tokens of each sequence."""
        return self.fixed + self.per_token * tau

    def speedup(self, tau: float) -> float:
        """Return the speed-up against plain decoding at this τ.

        >>> cost = TreeCost(PlainCost(1, 100, 1.0, 0.01), "chain:3", 4, 3, 1.0, 0.018, 0.001, 9)
        >>> round(cost.speedup(2.0), 6), round(cost.speedup(cost.tau(1.1)), 6)
        (1.0, 1.1)
        """
        return self.plain.seconds / (self.prefill + self.plain.new_tokens / tau * self.step(tau))

    def tau(self, speedup: float) -> float | None:
        """Return the τ that this speed-up needs; None where the tree cannot reach it."""
        tokens = self.plain.new_tokens
        left = self.plain.seconds / speedup - self.prefill - tokens * self.per_token
        needed = tokens * self.fixed / left if left > 0 else self.depth + 2
        return max(needed, 1.0) if needed <= self.depth + 1 else None


def measure_steps(
    target: TargetWeights,
    draft: DraftModel,
    shapes: Sequence[TreeShape],
    batch: Sequence[Request],
    enough: Callable[[int], bool],
    seed: int = 0,
) -> list[TreeCost]:
    """Measure plain steps and trees in turn, within one run; any weights of the draft will do.

    `batch` has one request per sequence; end-of-sequence tokens do not count. For `enough` see `time_in_turn`.
    """
    batch = [replace(one, eos=()) for one in sorted(batch, key=lambda one: -len(one.prompt))]
    written = decode(Engine(target), batch).texts
    texts = [[*one.prompt, *new] for one, new in zip(batch, written, strict=True)]
    trees = {StaticTree(shape).name: StaticDrafter(draft, shape) for shape in shapes}
    forced = {name: ForcedDrafter(drafter, texts, seed) for name, drafter in trees.items()}
    steps = time_in_turn(target, draft, {PLAIN: PLAIN_DRAFTER, **forced}, [batch], enough, seed)
    prefills = [_prefill(Engine(target), batch), _prefill(Engine(target, draft), batch)]
    plain_step = median(step.seconds for step in steps[PLAIN])
    plain = PlainCost(len(batch), batch[0].max_new_tokens, prefills[0], plain_step)
    return [_tree_cost(plain, name, one, prefills[1], steps[name]) for name, one in trees.items()]


def _tree_cost(
    plain: PlainCost, name: str, drafter: StaticDrafter, prefill: float, steps: Sequence[Step]
) -> TreeCost:
    fixed, slope = fitted_line([fmean(step.emitted) for step in steps], [step.seconds for step in steps])
    nodes, depth = drafter.max_nodes - 1, drafter.max_depth
    return TreeCost(plain, name, nodes, depth, prefill, fixed, slope, len(steps))


def fitted_line(emitted: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of a step that emits nothing, and those per token, by the line of Theil and Sen.

    A line that passes below the origin, as few or noisy steps may give, is replaced by one through the origin.
    """
    x, y = np.asarray(emitted), np.asarray(seconds)
    slope = _median_slope(x, y)
    fixed = float(np.median(y - slope * x))
    return (fixed, slope) if fixed >= 0 else (0.0, float(np.median(y / x)))


def _median_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the slope of Theil and Sen, which outliers hardly move: the median over all pairs; 0 if it is negative."""
    first, second = np.triu_indices(len(x), 1)
    run, rise = x[second] - x[first], y[second] - y[first]
    slopes = rise[run != 0] / run[run != 0]
    return max(float(np.median(slopes)), 0.0) if len(slopes) else 0.0


def _prefill(engine: Engine, batch: Sequence[Request]) -> float:
    """Return the seconds of the prefill of a batch; the clock waits for a GPU, which only queues the work."""
    one_token = [replace(request, max_new_tokens=1) for request in batch]
    runs = [decode(engine, one_token, synchronize=True) for _ in range(_STARTS)]
    return median(run.seconds - run.clock.decoding_seconds for run in runs)


class ForcedDrafter:
    """Grows a static tree with the draft, and then puts the text's own tokens on its first deepest path.

    The draft does all of its work, and the engine accepts as many tokens as it would of a trained draft. How many is
    drawn for each sequence and step.

    Args:
        texts: tokens of each sequence, in the order of the batch: the prompt, and what the target writes after it.
    """

    def __init__(self, drafter: StaticDrafter, texts: Sequence[Sequence[int]], seed: int = 0):
        self.max_depth, self.max_nodes = drafter.max_depth, drafter.max_nodes
        self._drafter, self._texts, self._random = drafter, texts, Random(seed)
        paths = drafter.shape.paths
        deepest = max(paths, key=len)  # the first choices need not go as deep
        self._forced = [paths.index(deepest[:depth]) for depth in range(1, self.max_depth + 1)]

    def grow(self, batch: DraftInput) -> TokenTree:
        session, logits = batch.commit_draft()
        tree = self._drafter.grow(CommittedInput(batch.root, batch.sampler, session, logits))
        tokens, chance = tree.tokens.clone(), self._random.uniform(_LEAST, _MOST)
        for row, length in enumerate(session.lengths):
            known = self._texts[row][length + 1 :]  # the draft has committed all positions before the root
            for node, token in zip(self._forced, known, strict=False):
                tokens[row, node] = token
                if self._random.random() > chance:
                    tokens[row, node] = token - 1 if token else 1
                    break
        return replace(tree, tokens=tokens)
