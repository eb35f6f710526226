"""An engine for policies, without models: scripted costs and acceptances, noise, and other processes in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

from clover.drafting.auto import AutoPolicy, Candidate
from clover.drafting.policy import Running, StepOutcome
from clover.drafting.tuning import PLAIN

TREES = {"chain:2": (3, 2), "budget:4": (5, 4), "own": (9, 5)}  # nodes and depth
ACCEPTED = {
    PLAIN: 0.0,
    "chain:2": 1.25,
    "budget:4": 1.6,
    "own": 1.75,
}  # per row and step, of text of difficulty 1
DRAFTING = {PLAIN: 0.0, "chain:2": 2.0, "budget:4": 4.5, "own": 4.7}
SIZES = (1, 2, 4, 8, 16, 32, 64)
CATCH_UP = 0.00004  # seconds per row and position
Course = Callable[[float], float]


def seconds(name: str, rows: int) -> float:
    """Of a step: 10 ms, 0.35 for each further token the target runs, and the drafting."""
    nodes = TREES[name][0] if name in TREES else 1
    return (10 + 0.35 * (nodes * rows - 1) + DRAFTING[name] * (1 + 0.05 * rows)) / 1000


@cache
def chance(mean: float, depth: int) -> float:
    """Of each node on the path, such that `mean` of `depth` are accepted."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**d for d in range(1, depth + 1)) < mean else (low, middle)
    return low


def accepted(name: str, difficulty: float) -> float:
    """Per row and step, on average."""
    if name == PLAIN:
        return 0.0
    depth = TREES[name][1]
    return sum(chance(ACCEPTED[name], depth) ** (difficulty * d) for d in range(1, depth + 1))


@dataclass
class Run:
    """What a run took, without the noise, and what other ways would have taken for the same tokens."""

    seconds: float = 0.0
    fixed: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def against_plain(self) -> float:
        return self.seconds / self.fixed[PLAIN]

    @property
    def against_best(self) -> float:
        return self.seconds / min(self.fixed.values())


def make_policy(tuned: bool) -> tuple[AutoPolicy, dict[int, str]]:
    """A policy that knows everything that a tuner would have measured, or nothing; and its drafters' names by id."""
    drafters = {name: SimpleNamespace(max_nodes=n, max_depth=d) for name, (n, d) in TREES.items()}
    guesses = {"chain:2": 0.8, "budget:4": 1.2, "own": 1.6}
    accepted = ACCEPTED if tuned else guesses
    candidates = [Candidate(name, drafter, accepted[name]) for name, drafter in drafters.items()]  # type: ignore[arg-type]
    costs = {size: {name: seconds(name, size) for name in ACCEPTED} for size in SIZES}
    policy = AutoPolicy(candidates, costs, weight=200.0) if tuned else AutoPolicy(candidates)
    return policy, {id(drafter): name for name, drafter in drafters.items()}


def simulate(
    tuned: bool,
    tokens: int,
    difficulty: Course = lambda _: 1.0,
    rows: Course = lambda _: 1,
    seed: int = 0,
    slow: float = 0.02,
) -> Run:
    """Decode `tokens` per row. `difficulty` and `rows` are functions of the tokens so far; `slow`: a share of steps."""
    rng, found, at, behind = random.Random(seed), Run(), 0.0, 0
    policy, names = make_policy(tuned)
    while at < tokens:
        batch, text = int(rows(at)), difficulty(at)
        drafter = policy.choose(Running(batch, 50 + int(at) % 500, behind=behind))
        name = names.get(id(drafter), PLAIN)
        emitted = tuple(_emitted(rng, name, text) for _ in range(batch))
        caught_up, behind = (behind, 0) if drafter is not None else (0, min(behind + 1, 400))
        step = seconds(name, batch) + CATCH_UP * caught_up * batch
        measured = step * rng.lognormvariate(0, 0.05) * (rng.uniform(3, 6) if rng.random() < slow else 1)
        nodes = 1 if drafter is None else drafter.max_nodes
        policy.record(StepOutcome(batch, 50, drafter, nodes, emitted, measured, 0.0, caught_up))
        gained = sum(emitted) / batch
        for other in ACCEPTED:
            found.fixed[other] += gained * seconds(other, batch) / (1 + accepted(other, text))  # type: ignore[assignment]
        at, found.seconds = at + gained, found.seconds + step
        found.steps[name] += 1
        found.trace.append(name)
    return found


def _emitted(rng: random.Random, name: str, difficulty: float) -> int:
    if name == PLAIN:
        return 1
    depth, count = TREES[name][1], 1
    going = chance(ACCEPTED[name], depth) ** difficulty
    while count <= depth and rng.random() < going:
        count += 1
    return count
