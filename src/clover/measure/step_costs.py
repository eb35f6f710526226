"""Measure the cost of drafting with a tree on this machine, with any weights, and the τ that a speed-up needs.

For texts of N new tokens, and a step that takes fixed + per_token · τ seconds (`clover.measure.steps`),

    speed-up(τ) = (prefill + N · plain step) / (prefill with draft + N / τ · (fixed + per_token · τ)).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from random import Random

from clover.drafting import PLAIN_DRAFTER, CommittedInput, Drafter, DraftInput, StaticDrafter, StaticTree
from clover.drafts import DraftModel
from clover.engine import Engine, PhaseClock, Request
from clover.measure.session import PLAIN
from clover.measure.steps import StepCost, time_in_turn
from clover.measure.timing import time_decoding
from clover.target import TargetWeights
from clover.tree import TokenTree, TreeShape

_WARM_TOKENS = 2
_LEAST, _MOST = 0.1, 0.95  # limits of the chance that a forced token is right, drawn for each step


@dataclass(frozen=True)
class TextCost:
    """The seconds to decode whole texts of one batch: the prefill of all prompts, and each step."""

    new_tokens: int
    prefill: float
    step: StepCost

    def seconds(self, tau: float = 1.0) -> float:
        """Return the seconds of all texts at this τ; it is 1 for plain decoding."""
        return self.prefill + self.new_tokens / tau * self.step.at(tau)


@dataclass(frozen=True)
class TreeCost:
    """The seconds to decode one batch plainly, and with a tree of this depth; τ is at most `depth` + 1."""

    plain: TextCost
    drafted: TextCost
    depth: int

    def speedup(self, tau: float) -> float:
        """Return the speed-up against plain decoding at this τ.

        >>> plain = TextCost(100, 1.0, StepCost(1, "plain", 1, 0.01, fixed=0.01))
        >>> cost = TreeCost(plain, TextCost(100, 1.0, StepCost(1, "chain:3", 4, 0.02, fixed=0.018, per_token=0.001)), 3)
        >>> round(cost.speedup(2.0), 6), round(cost.speedup(cost.tau(1.1)), 6)
        (1.0, 1.1)
        """
        return self.plain.seconds() / self.drafted.seconds(tau)

    @property
    def plain_token_seconds(self) -> float:
        """Return the seconds per token of plain decoding, for whole texts."""
        return self.plain.seconds() / (self.plain.new_tokens * self.plain.step.batch_size)

    def tau(self, speedup: float) -> float | None:
        """Return the τ that this speed-up needs; None if the tree cannot reach it."""
        tokens, step = self.drafted.new_tokens, self.drafted.step
        left = self.plain.seconds() / speedup - self.drafted.prefill - tokens * step.per_token
        needed = tokens * step.fixed / left if left > 0 else self.depth + 2
        return max(needed, 1.0) if needed <= self.depth + 1 else None


def measure_steps(
    target: TargetWeights,
    draft: DraftModel,
    shapes: Sequence[TreeShape],
    batch: Sequence[Request],
    enough: Callable[[int], bool],
    seed: int = 0,
    seconds: float = inf,
) -> list[TreeCost]:
    """Measure plain steps and trees in turn, in one run; the draft may have any weights.

    Trees for which `enough` leaves no time are left out.

    Args:
        target, draft: the pair.
        shapes: the trees.
        batch: one request per sequence; end-of-sequence tokens are ignored.
        enough: see `time_in_turn`; also called with 0 while the target writes.
        seed: of the order of trees, and of the number of accepted tokens.
        seconds: about how long the target writes the forced texts; no token is accepted after their end.
    """
    batch = [replace(one, eos=()) for one in sorted(batch, key=lambda one: -len(one.prompt))]
    # The first pass must not count, because it reads weights from the disk and packs them.
    time_decoding(Engine(target), [replace(batch[-1], max_new_tokens=_WARM_TOKENS)])
    texts, clock = [list(one.prompt) for one in batch], PhaseClock(synchronize=True)
    started = time.monotonic()
    with closing(Engine(target).run(batch, clock)) as events:
        for event in events:
            texts[event.index] += event.tokens
            enough(0)
            if time.monotonic() - started > seconds:
                break
    shortest = min(len(text) - len(one.prompt) for text, one in zip(texts, batch, strict=True))
    forced = {
        StaticTree(shape).name: ForcedDrafter(StaticDrafter(draft, shape), texts, seed) for shape in shapes
    }
    known = [replace(one, max_new_tokens=max(shortest, 1)) for one in batch]
    timed = time_in_turn(target, draft, {PLAIN: PLAIN_DRAFTER, **forced}, [known], enough, seed)
    length = batch[0].max_new_tokens
    plain = TextCost(length, clock.seconds["prefill"], timed.costs[PLAIN])
    return [
        TreeCost(plain, TextCost(length, timed.prefill, timed.costs[name]), one.max_depth)
        for name, one in forced.items()
        if name in timed.costs
    ]


class ForcedDrafter(Drafter):
    """A drafter that grows a static tree with the draft, and then puts the text's own tokens on its first deepest path.

    The draft does all of its work, and the engine accepts as many tokens as from a trained draft. That number is drawn
    for each sequence and step.

    Args:
        texts: tokens of each sequence, in the order of the batch: the prompt, and the target's text after it.
    """

    def __init__(self, drafter: StaticDrafter, texts: Sequence[Sequence[int]], seed: int = 0):
        self.max_depth, self.max_nodes = drafter.max_depth, drafter.max_nodes
        self._drafter, self._texts, self._random = drafter, texts, Random(seed)
        paths = drafter.shape.paths
        deepest = max(paths, key=len)  # because the path of first choices may be shorter
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
