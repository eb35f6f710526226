"""The choice of what drafts, made at each step: a bandit over plain decoding, chains, trees and prompt lookup.

A candidate's speed is its expected tokens per step divided by the seconds of its step. The fastest one runs; now and
then another one is probed, within a budget of time. docs/auto.md says what that loses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, log2
from statistics import fmean, linear_regression

from clover.drafting.base import Drafter, Policy, Running, StepOutcome
from clover.drafting.plain import PLAIN
from clover.drafting.prompt_lookup import LookupAcceptance, LookupTree
from clover.drafting.static import StaticTree, own_shape
from clover.drafting.tree import Tree, parse_tree
from clover.drafting.tuning import Choice, Tuning, interpolate
from clover.drafts import DraftModel
from clover.drafts.ngrams import RepeatingText
from clover.tree import TreeShape

_PROBE_SHARE, _PROBE_STEPS = 0.01, 3  # share of the time that probes may lose; steps of each
_MEMORY = 32.0  # steps that acceptance is averaged over
_FORGOTTEN = 1e-9  # observations: less must not sink further, to 0 of 0
_FEW = 8  # positions that the draft commits in no time
_SLOWEST, _DRIFT, _OUTLIER = (
    0.01,
    0.1,
    0.4,
)  # rates of learning costs and the machine's speed; most, in logarithms
_DEPTHS, _COMPILED_DEPTHS = (1, 2, 4, 6, 8, 12), (2,)  # chains that an untuned draft may grow
_LENGTHS, _COMPILED_LENGTHS = (7, 15, 31), (15,)  # tokens that prompt lookup may propose
_LOOKUP_COST = 0.05  # of a plain step, per token: what a lookup is taken to cost before any has run


@dataclass(frozen=True)
class AutoTree(Tree):
    """The fastest of plain decoding, chains, the draft's own tree, tuned trees and prompt lookup, as it is found."""

    word = "auto"
    example = "auto"
    fixed_size = False
    tunable = False

    def policy(self, draft: DraftModel, tuning: Tuning | None = None, compiled: bool = False) -> AutoPolicy:
        """Return the bandit; with a tuning over its chains and each batch size's best tree, whose costs it knows.

        Compiled steps have fewer candidates, because each shape is compiled.
        """
        lookups = [LookupTree(length) for length in (_COMPILED_LENGTHS if compiled else _LENGTHS)]
        trees, known = _tuned(tuning, compiled) if tuning else ([], {})
        if not any(tree.is_chain for tree in trees):
            depths = [min(depth, draft.max_depth) for depth in (_COMPILED_DEPTHS if compiled else _DEPTHS)]
            trees, known = [*(TreeShape.chain(depth) for depth in depths), own_shape(draft)], {}
            trees = list(map(StaticTree, trees))
        if tuning and known:
            for size, costs in known.items():
                costs |= _lookup_seconds(tuning, size, costs.get(PLAIN.name), lookups)
        candidates = {tree.name: Candidate(tree, tree.drafter(draft)) for tree in (PLAIN, *trees, *lookups)}
        return AutoPolicy(candidates, known, _taus(tuning) if known else {})


@dataclass(frozen=True)
class Candidate:
    """Something that may draft."""

    tree: Tree
    drafter: Drafter

    @property
    def depth(self) -> int:
        """Return the most tokens that one of its steps can accept."""
        return self.drafter.max_depth


class RunningAcceptance:
    """Tokens per step at each depth, from a running mean of the acceptance rate there.

    The rate at a depth counts the sequences that got there; the depth before speaks for one that was hardly seen. At
    first `rate` is assumed, which counts for `weight` observations.
    """

    def __init__(self, depth: int, rate: float = 0.6, weight: float = 1.0):
        self._right, self._tried = [0.0] * depth, [0.0] * depth
        self._right[0], self._tried[0] = rate * weight, weight

    def observe(self, accepted: Sequence[int], depth: int) -> None:
        """Learn from a step: draft tokens accepted in each sequence, of chains or trees of a depth."""
        self.discount()
        for count in accepted:
            for at in range(min(count + 1, depth)):
                self._tried[at] += 1
                self._right[at] += at < count

    def discount(self) -> None:
        """Let what was seen count a little less, also at steps in which nothing is seen; the rates stay."""
        kept = 1 - 1 / _MEMORY if self._tried[0] > _FORGOTTEN else 1.0
        self._right = [kept * value for value in self._right]
        self._tried = [kept * value for value in self._tried]

    def tokens(self, depth: int) -> float:
        """Return the tokens expected per sequence and step, the bonus token included."""
        rate, reached, total = self._right[0] / self._tried[0], 1.0, 1.0
        for right, tried in zip(self._right[:depth], self._tried, strict=False):
            rate = (right + rate) / (tried + 1)
            reached *= rate
            total += reached
        return total


@dataclass
class StepSeconds:
    """Seconds of a step of each candidate that was timed, in batches of about one size; only ratios count.

    The machine's speed drifts, so what a step took is divided by how fast the machine was of late. `runs` counts the
    steps of a candidate; its first one is not timed, because it may pack weights or compile.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    machine: float | None = None  # seconds at present per second of `seconds`

    def observe(self, name: str, seconds: float) -> None:
        """Learn from the seconds of a step."""
        runs = self.runs[name] = self.runs.get(name, 0) + 1
        if name not in self.seconds:
            if runs > 1:
                self.machine = self.machine or 1.0
                self.seconds[name] = seconds / self.machine
            return
        if self.machine is None:
            self.machine = seconds / self.seconds[name]
        error = log(seconds / self.machine / self.seconds[name])
        error = max(-_OUTLIER, min(error, _OUTLIER))  # other processes make single steps slow
        self.seconds[name] *= exp(error * max(1 / runs, _SLOWEST))
        self.machine *= exp(error * _DRIFT)


class AutoPolicy(Policy):
    """Runs the candidate with the most expected tokens per second, and probes another one where the budget allows it.

    A probe is three steps. What they lose against the candidate that leads, the draft's catching up included, is paid
    from 1 % of the time of all other steps, so that a poor draft costs about as much. Prompt lookup needs no probes,
    because every token tells what it would have been worth; in a batch no sequence may lose by it.

    Batch sizes are grouped by powers of two. Acceptance is common to all, and to all chains.

    Args:
        candidates: what may draft, by name: plain decoding, a chain at least, trees and prompt lookups.
        costs: seconds of a step by batch size and candidate, where they are known.
        taus: tokens per step by candidate, where they are known.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidate],
        costs: Mapping[int, Mapping[str, float]],
        taus: Mapping[str, float],
    ):
        self._candidates = dict(candidates)
        self._depths = {name: one.depth for name, one in candidates.items()}
        self.max_depth = max(self._depths.values())
        self.max_nodes = max(one.drafter.max_nodes for one in candidates.values())
        by_depth = sorted(candidates, key=self._depths.__getitem__)
        self._chains = [name for name in by_depth if candidates[name].tree.is_chain]
        self._lookups = [name for name in by_depth if isinstance(candidates[name].tree, LookupTree)]
        common = self._assumed(self._chains[0], self._depths[self._chains[-1]], taus)
        self._acceptance = {
            name: common if name in (PLAIN.name, *self._chains) else self._assumed(name, depth, taus)
            for name, depth in self._depths.items()
            if name not in self._lookups
        }
        self._lookup, self._texts = LookupAcceptance(), list[RepeatingText]()
        self._sizes = {
            size_group(size): StepSeconds(dict(known), dict.fromkeys(known, 3))
            for size, known in costs.items()
        }
        self._group, self._name, self.leader = -1, PLAIN.name, PLAIN.name
        self._probe, self._probe_steps = PLAIN.name, 0  # what is probed, and steps that are left
        self._budget = 0.0  # seconds that probes may lose

    def _assumed(self, name: str, depth: int, taus: Mapping[str, float]) -> RunningAcceptance:
        if name not in taus:
            return RunningAcceptance(depth)
        return RunningAcceptance(depth, _rate(taus[name], self._depths[name]), 8.0)

    def choose(self, running: Running) -> Drafter:
        size = self._enter(running.batch_size)
        self._texts = list(running.texts()) if self._lookups else []
        for text in self._texts:
            self._lookup.learn(text)
        self._name = self.leader = PLAIN.name
        if PLAIN.name in size.seconds:
            costs = self._costs(size.seconds)
            speeds = {n: one.tokens(self._depths[n]) / costs[n] for n, one in self._acceptance.items()}
            timed = set(size.seconds)
            if self._chains[0] in timed:
                timed |= set(self._chains)  # the costs of all chains are on one line
            self.leader = max(timed & speeds.keys(), key=speeds.__getitem__)
            if not self._probe_steps and self._budget >= 0 and size.machine is not None:
                steps = _PROBE_STEPS if running.batch_size == 1 else _PROBE_STEPS - 1
                self._probe, self._probe_steps = self._rival(timed, speeds, costs), steps
            self._speed = speeds[self.leader]
            self._name = self._probe if self._probe_steps else self._looked_up(costs, running.room)
        return self._candidates[self._name].drafter

    def record(self, outcome: StepOutcome) -> None:
        size, name = self._sizes[self._group], self._name
        if name != PLAIN.name and outcome.nodes == 1:
            return  # nothing was drafted: the context ends, or nothing repeats itself
        if name == PLAIN.name:
            for one in set(self._acceptance.values()):
                one.discount()
        elif name in self._acceptance:
            depth = min(self._depths[name], outcome.nodes - 1)
            self._acceptance[name].observe([count - 1 for count in outcome.emitted], depth)
        if outcome.backlog <= _FEW:
            size.observe(name, outcome.seconds)
        if self._probe_steps:
            self._probe_steps -= 1
            instead = fmean(outcome.emitted) / self._speed * (size.machine or 1.0)
            self._budget -= max(outcome.seconds - instead, outcome.seconds / 12)
        else:
            self._budget = min(self._budget + _PROBE_SHARE * outcome.seconds, 0.0)

    def _enter(self, batch_size: int) -> StepSeconds:
        """Return the costs of the batch's group; those of the nearest one are assumed for a new group."""
        group = size_group(batch_size)
        if group not in self._sizes:
            near = min(self._sizes, key=lambda other: (abs(other - group), other), default=None)
            known = {} if near is None else self._sizes[near].seconds
            self._sizes[group] = StepSeconds(dict(known), dict.fromkeys(known, 1))
        if group != self._group:
            self._group, self._probe_steps = group, 0
            self._sizes[group].machine = None
        return self._sizes[group]

    def _costs(self, known: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of a step of each candidate: timed, or on a line through those that were.

        Half of what the shallowest chain takes beyond a plain step is taken for the same at every depth.
        """
        plain = known[PLAIN.name]
        chains = [(float(self._depths[name]), known[name]) for name in self._chains if name in known]
        lookups = [(float(self._depths[name]), known[name]) for name in self._lookups if name in known]
        first = fmean((plain, chains[0][1])) if chains else plain
        slope, start = _line([(0.0, first), *chains]) if chains else (_LOOKUP_COST * plain, plain)
        copying = _line([(0.0, plain), *lookups])[0] if lookups else max(slope, _LOOKUP_COST * plain)
        return {
            name: known.get(name)
            or max(plain + copying * depth if name in self._lookups else start + slope * depth, plain)
            for name, depth in self._depths.items()
        }

    def _rival(self, timed: set[str], speeds: Mapping[str, float], costs: Mapping[str, float]) -> str:
        """Return the candidate to probe: the one that would be the fastest if it accepted as much as the leader.

        What others accept was seen on texts that may be gone. Chains are no rivals of each other: what one accepts and
        costs tells that of all.
        """
        if self._chains[0] not in timed:
            return self._chains[0]
        alike, leads = self._acceptance[self.leader], self.leader in self._chains
        rivals = {
            name: max(speed, alike.tokens(self._depths[name]) / costs[name])
            for name, speed in speeds.items()
            if name != self.leader and not (leads and name in self._chains)
        }
        return max(rivals, key=rivals.__getitem__)

    def _looked_up(self, costs: Mapping[str, float], room: int) -> str:
        """Return the prompt lookup that is worth more than the leader in this step, or the leader."""
        matches = [text.match for text in self._texts]
        best, most = self.leader, self._speed
        for name in self._lookups if matches and all(matches) else ():
            tokens = [self._lookup.tokens(match, self._depths[name]) for match in matches]
            gains = self._depths[name] < room and min(tokens) * costs[PLAIN.name] >= costs[name]
            if gains and fmean(tokens) / costs[name] > most:
                best, most = name, fmean(tokens) / costs[name]
        return best


def size_group(batch_size: int) -> int:
    """Return the group of a batch size; those of one are about alike: 1, 2, 3 to 5, 6 to 11, 12 to 22 and so on."""
    return round(log2(batch_size))


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the line through points; it never falls."""
    slope, intercept = linear_regression(*zip(*points, strict=True))
    return max(slope, 0.0), intercept if slope > 0 else fmean(y for _, y in points)


def _tuned(tuning: Tuning, compiled: bool) -> tuple[list[Tree], dict[int, dict[str, float]]]:
    """Return the trees that a tuning recommends, and the seconds of a step by batch size and tree."""
    trees, costs = dict[str, Tree](), dict[int, dict[str, float]]()
    for size in tuning.batch_sizes:
        for choice in _recommended(tuning.choices_for(size), compiled):
            costs.setdefault(size, {})[choice.tree] = choice.step_seconds
            if choice.tree != PLAIN.name:
                trees[choice.tree] = parse_tree(choice.tree)
    return list(trees.values()), costs


def _recommended(choices: Sequence[Choice], compiled: bool) -> Iterator[Choice]:
    """Yield plain decoding, all chains (the best one if steps are compiled) and the best tree of a batch size."""
    chains = [one for one in choices if parse_tree(one.tree).is_chain]
    yield from (one for one in choices if one.tree == PLAIN.name)
    yield from chains[: 1 if compiled else None]
    yield from [one for one in choices if one.tree != PLAIN.name and not one.tree.startswith("chain:")][:1]


def _taus(tuning: Tuning | None) -> dict[str, float]:
    """Return the tokens per step of each tree of a tuning, as the mean over its batch sizes."""
    found = dict[str, list[float]]()
    for choice in tuning.choices if tuning else ():
        found.setdefault(choice.tree, []).append(choice.tau)
    return {name: fmean(taus) for name, taus in found.items()}


def _rate(tau: float, depth: int) -> float:
    """Return the acceptance rate, the same at every depth, that gives so many tokens per step."""
    low, high = 0.0, 1.0
    for _ in range(30):
        rate = (low + high) / 2
        low, high = (low, rate) if sum(rate**d for d in range(depth + 1)) > tau else (rate, high)
    return low


def _lookup_seconds(
    tuning: Tuning, size: int, plain: float | None, lookups: Sequence[LookupTree]
) -> dict[str, float]:
    """Return the seconds of a step of each prompt lookup: a plain step's, with the target's pass over more tokens."""
    if plain is None or not tuning.verify:
        return {}
    passes = tuning.verify_line(size)
    one = interpolate(passes, 1)
    return {tree.name: plain * max(interpolate(passes, 1 + tree.length) / one, 1.0) for tree in lookups}
