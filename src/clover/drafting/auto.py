"""What drafts at each step, chosen while it runs: the candidate with the most expected tokens per second.

A candidate's speed is its tokens per step divided by the seconds of its step. Tokens come from a running mean of the
acceptance rate at each depth, seconds from the tuning, or from the first steps. docs/auto.md says what it loses.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2
from statistics import fmean, median_low

from clover.drafting.base import PLAIN_DRAFTER, Drafter, Policy, Running, StepOutcome
from clover.drafting.factory import make_drafter
from clover.drafting.prompt_lookup import LookupAcceptance, LookupDrafter
from clover.drafting.static import own_tree
from clover.drafting.tuning import PLAIN, Choice, Tuning, on_line
from clover.drafts import DraftModel
from clover.drafts.ngrams import RepeatingText
from clover.tree import TreeShape, static_spec

_MARGIN = 1.03  # a change must promise that much
_NEAR = 1.3  # a leader less than so many times as fast as a rival may owe its lead to an error in its costs
_PROBE_SHARE = 0.01  # of the time may be lost by probes
_PROBE_STEPS, _PLAIN_STEPS = 3, 2
_MOST_LOST = 3  # times that the wait between probes doubles
_MEMORY = 32.0  # steps that acceptance is averaged over
_FORGOTTEN = 1e-9  # observations: less counts for nothing beside the next one, and must not sink to 0 of 0
_KEPT = 9  # seconds of steps, of which the median counts
_FIRST_STEP = 3.0  # plain steps: no first step counts for more, it may have packed weights, or compiled
_FEW = 8  # positions that the draft catches up on in no time
_DEPTHS, _COMPILED_DEPTHS = (1, 2, 4, 6, 8, 12), (2,)  # chains that an untuned draft may grow
_LENGTHS, _COMPILED_LENGTHS = (7, 15, 31), (15,)  # tokens that prompt lookup may propose
_LOOKUP_COST = 0.05  # guess: plain steps per token, at least


class RunningAcceptance:
    """Tokens per step at each depth, from a running mean of the acceptance rate there.

    The rate at a depth counts the sequences that got there; the depth before speaks for one that was hardly seen. At
    first `rate` is assumed, which counts for `weight` observations.
    """

    def __init__(self, depth: int, rate: float, weight: float):
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
        """Expected per sequence and step, the bonus token included."""
        rate, reached, total = self._right[0] / self._tried[0], 1.0, 1.0
        for right, tried in zip(self._right[:depth], self._tried, strict=False):
            rate = (right + rate) / (tried + 1)
            reached *= rate
            total += reached
        return total


class StepSeconds:
    """Seconds of a step of each candidate in batches of about one size; only ratios count.

    The machine's speed changes, so a candidate that runs for a few steps is compared with what ran just before.
    Medians, because other processes make single steps slow. What is `known`, by name, counts for `weight` steps.
    """

    def __init__(self, known: Mapping[str, float], weight: int):
        self._steps = {name: deque([value] * weight, maxlen=_KEPT) for name, value in known.items()}
        self._time_scale = deque[float](maxlen=_KEPT)  # seconds of late, divided by those of `known`

    @property
    def medians(self) -> dict[str, float]:
        """Of those that have run, or were tuned."""
        return {name: median_low(steps) for name, steps in self._steps.items()}

    @property
    def time_scale(self) -> float | None:
        """Seconds at present per second of `medians`; None before anything has run."""
        return median_low(self._time_scale) if self._time_scale else None

    def observe(self, name: str, seconds: float, new: bool) -> None:
        """Learn from a step what a candidate costs if it is new there, else how fast the machine is."""
        time_scale, known = self.time_scale, self.medians
        if name not in known or (new and time_scale is not None):
            most = _FIRST_STEP * known[PLAIN] if PLAIN in known and name not in known else inf
            steps = self._steps.setdefault(name, deque(maxlen=_KEPT))
            steps.append(min(seconds / (time_scale or 1.0), most))
        if not new or time_scale is None:
            self._time_scale.append(seconds / known.get(name, seconds))

    def interrupt(self) -> None:
        """The machine's speed of late is not that of the steps to come."""
        self._time_scale.clear()


@dataclass(frozen=True)
class Candidate:
    """Something that may draft, of kind "plain", "chain", "tree" or "lookup"; the rest is for `RunningAcceptance`."""

    kind: str
    drafter: Drafter
    rate: float = 0.6
    weight: float = 1.0


@dataclass
class _Size:
    """Batches of about one size: what steps cost, what leads and since how many steps."""

    costs: StepSeconds
    leader: str = PLAIN
    age: int = 0


class AutoPolicy(Policy):
    """Runs the fastest candidate; probes another one where that may pay.

    Where plain steps lead, the best chain is probed, at first the shallowest. Where drafting leads, plain steps and
    trees are, if they may be nearly as fast. A probe is three steps, two in a batch. What it loses, catching up
    included, must be 1 % of the time until the next, and less after each probe that was lost. Prompt lookup needs no
    probes, because every token tells what it would have been worth. In a batch it must be faster than plain steps for
    every sequence.

    Two mechanisms gain less than 1 % in the mean (docs/auto.md) and stay for the worst case: the wait that doubles
    after lost probes bounds what a poor draft may cost, the margin how often compiled steps change their shape.

    Batch sizes are grouped by powers of two. Acceptance is common to all. `costs` are seconds of a step by batch size
    and candidate, where they are known.
    """

    def __init__(
        self, candidates: Mapping[str, Candidate], costs: Mapping[int, Mapping[str, float]] | None = None
    ):
        self._candidates = dict(candidates)
        self._depths = {name: one.drafter.max_depth for name, one in candidates.items()}
        self.max_nodes = max(one.drafter.max_nodes for one in candidates.values())
        self.max_depth = max(self._depths.values())
        self._chains, self._lookups = self._of_kind("chain"), self._of_kind("lookup")
        self._shallowest, first = self._chains[0], candidates[self._chains[0]]
        common = RunningAcceptance(self._depths[self._chains[-1]], first.rate, first.weight)
        trees = {
            name: RunningAcceptance(self._depths[name], candidates[name].rate, candidates[name].weight)
            for name in self._of_kind("tree")
        }
        self._acceptance = dict.fromkeys([PLAIN, *self._chains], common) | trees
        self._lookup, self._texts = LookupAcceptance(), list[RepeatingText]()
        self._sizes = {size_group(at): _Size(StepSeconds(known, 3)) for at, known in (costs or {}).items()}
        self._group, self._name = -1, PLAIN
        self._probe: tuple[str, int] | None = None  # what, and steps that are left
        self._spent, self._yielded = 0.0, 0.0  # by the probe: seconds, and tokens per sequence
        self._wait, self._lost = 0.0, 0  # seconds until the next probe, and probes lost one after the other

    def _of_kind(self, kind: str) -> list[str]:
        """Names of candidates, the shallowest first."""
        names = [name for name, one in self._candidates.items() if one.kind == kind]
        return sorted(names, key=self._depths.__getitem__)

    @property
    def leader(self) -> str:
        """Name of what is held for the best at the present batch size."""
        return self._sizes[self._group].leader if self._group in self._sizes else PLAIN

    def choose(self, running: Running) -> Drafter:
        size = self._enter(running.batch_size)
        self._texts = list(running.texts()) if self._lookups else []
        for text in self._texts:
            self._lookup.learn(text)
        known = size.costs.medians
        if PLAIN not in known or (len(known) == 1 and size.age < _PLAIN_STEPS):
            self._name = PLAIN
        else:
            costs = self._costs(known)
            self._lead(size, costs)
            if self._probe is None:
                self._begin_probe(size, costs, running.batch_size)
            self._name = self._probe[0] if self._probe else self._looked_up(size, costs, running.room)
        return self._candidates[self._name].drafter

    def record(self, outcome: StepOutcome) -> None:
        size, name = self._sizes[self._group], self._name
        size.age += 1
        if name != PLAIN and outcome.nodes == 1:
            return  # nothing was drafted: the context ends, or nothing repeats itself
        if name == PLAIN:
            for one in set(self._acceptance.values()):
                one.discount()
        elif name in self._acceptance:
            depth = min(self._depths[name], outcome.nodes - 1)
            self._acceptance[name].observe([count - 1 for count in outcome.emitted], depth)
        if outcome.backlog <= _FEW:
            new = name != size.leader or size.age <= _PROBE_STEPS
            size.costs.observe(name, outcome.seconds, new)
        if self._probe is None:
            self._wait -= outcome.seconds
        else:
            self._learn_from_probe(size, outcome)

    def _enter(self, batch_size: int) -> _Size:
        group = size_group(batch_size)
        if group not in self._sizes:
            near = min(self._sizes, key=lambda other: (abs(other - group), other), default=None)
            known = {} if near is None else self._sizes[near].costs.medians
            leader = PLAIN if near is None else self._sizes[near].leader
            self._sizes[group] = _Size(StepSeconds(known, 2), leader)
        if group != self._group:
            if self._probe is not None:
                self._end_probe(self._sizes[self._group])
            self._group = group
            self._sizes[group].costs.interrupt()
        return self._sizes[group]

    def _costs(self, known: Mapping[str, float]) -> dict[str, float]:
        """Of a step of each candidate: measured, or on a line through the chains that were."""
        plain = known[PLAIN]
        chains = [(float(self._depths[name]), known[name]) for name in self._chains if name in known]
        if len(chains) == 1:  # half of what drafting takes is taken for the same at every depth
            chains.insert(0, (0.0, (plain + chains[0][1]) / 2))
        slope = on_line(chains, 2) - on_line(chains, 1) if chains else 0.0
        lookups = [(float(self._depths[name]), known[name]) for name in self._lookups if name in known]
        lookups = [(0.0, plain), *(lookups or [(1.0, plain + max(slope, _LOOKUP_COST * plain))])]
        lines = {name: lookups if name in self._lookups else chains or lookups for name in self._candidates}
        return {name: on_line(line, self._depths[name]) for name, line in lines.items()} | dict(known)

    def _speeds(self, costs: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
        """Expected tokens per sequence and second of any but prompt lookup."""
        return {name: self._acceptance[name].tokens(self._depths[name]) / costs[name] for name in names}

    def _lead(self, size: _Size, costs: Mapping[str, float]) -> None:
        """Let another candidate lead if it promises to be faster by the margin; one that never ran must be probed."""
        own = set(size.costs.medians)
        if self._shallowest in own:
            own |= set(self._chains)  # all of them are on one line
        speeds = self._speeds(costs, [name for name in self._acceptance if name in own])
        best = max(speeds, key=speeds.__getitem__)
        if size.leader not in speeds or speeds[best] > _MARGIN * speeds[size.leader]:
            size.leader, size.age = best, 0

    def _looked_up(self, size: _Size, costs: Mapping[str, float], room: int) -> str:
        """The prompt lookup that is worth more than the leader in this step, or the leader."""
        matches = [text.match for text in self._texts]
        if not (matches and all(matches)):
            return size.leader
        speeds = dict[str, float]()
        for name in self._lookups:
            tokens = [self._lookup.tokens(match, self._depths[name]) for match in matches]
            if self._depths[name] < room and min(tokens) * costs[PLAIN] >= costs[name]:
                speeds[name] = fmean(tokens) / costs[name]
        best = max(speeds, key=speeds.__getitem__, default=PLAIN)
        own = self._speeds(costs, [size.leader])[size.leader]
        return best if speeds.get(best, 0.0) > _MARGIN * own else size.leader

    def _begin_probe(self, size: _Size, costs: Mapping[str, float], batch_size: int) -> None:
        if self._wait > 0 or size.costs.time_scale is None:
            return
        speeds = self._speeds(costs, self._acceptance)
        own = speeds.pop(size.leader)
        if size.leader == PLAIN:
            known = self._shallowest in size.costs.medians
            name = max(self._chains, key=speeds.__getitem__) if known else self._shallowest
        else:
            # What others accept was seen on texts that may be gone; on this one they may be as good as the leader.
            alike = self._acceptance[size.leader]
            others = {
                name: max(speed, alike.tokens(self._depths[name]) / costs[name])
                for name, speed in speeds.items()
                if size.leader not in self._chains or name not in self._chains
            }
            name = max(others, key=others.__getitem__)
            if others[name] * _NEAR < own:
                return
        self._probe = name, _PROBE_STEPS if batch_size == 1 else _PROBE_STEPS - 1
        self._spent, self._yielded = 0.0, 0.0

    def _learn_from_probe(self, size: _Size, outcome: StepOutcome) -> None:
        """Count a step of the probe; it ends early where a draft is of no use."""
        assert self._probe is not None
        name, left = self._probe
        self._probe = name, left - 1
        self._spent += outcome.seconds
        self._yielded += fmean(outcome.emitted)
        useless = left == 2 and max(outcome.emitted) == 1 and self._yielded < _PLAIN_STEPS + 0.5
        if left == 1 or (useless and name != PLAIN and name in size.costs.medians):
            self._end_probe(size)

    def _end_probe(self, size: _Size) -> None:
        """Let the next probe wait for what this one lost, or for what a quarter of its step takes."""
        self._probe = None
        costs, time_scale = self._costs(size.costs.medians), size.costs.time_scale or 1.0
        instead = time_scale * self._yielded / self._speeds(costs, [size.leader])[size.leader]
        lost = max(self._spent - instead, self._spent / (4 * _PROBE_STEPS))
        self._wait = lost / _PROBE_SHARE * 2**self._lost
        self._lost = min(self._lost + 1, _MOST_LOST) if self._spent > instead else 0


def size_group(batch_size: int) -> int:
    """Batch sizes of one group are about alike: 1, 2, 3 to 5, 6 to 11, 12 to 22 and so on."""
    return round(log2(batch_size))


def make_policy(draft: DraftModel, tuning: Tuning | None = None, compiled: bool = False) -> AutoPolicy:
    """Make what chooses between plain decoding, chains, the draft's own tree and prompt lookup while it runs.

    The tuning has chains and each batch size's best tree; without one chains of a few depths and the draft's own tree
    are measured in the first steps. If `compiled` there are fewer shapes, because each is compiled.
    """
    lengths = _COMPILED_LENGTHS if compiled else _LENGTHS
    lookups = {f"lookup:{length}": Candidate("lookup", LookupDrafter(length)) for length in lengths}
    found = {PLAIN: Candidate("plain", PLAIN_DRAFTER), **lookups}
    known = {} if tuning is None else _known(tuning, compiled)
    if tuning is None or not any(name.startswith("chain:") for name in known):
        depths = _COMPILED_DEPTHS if compiled else _DEPTHS
        shapes = [TreeShape.chain(min(depth, draft.max_depth)) for depth in depths]
        shapes.append(own_tree(draft))
        names = dict.fromkeys(map(static_spec, shapes))
        return AutoPolicy(found | {name: _candidate(draft, name) for name in names})
    for name, choices in known.items():
        if name != PLAIN:
            found[name] = _candidate(draft, name, fmean(choice.tau for choice in choices.values()))
    costs = dict[int, dict[str, float]]()
    for size in tuning.batch_sizes:
        costs[size] = {name: one[size].step_seconds for name, one in known.items() if size in one}
        costs[size] |= _lookup_seconds(tuning, size, costs[size].get(PLAIN), lengths)
    return AutoPolicy(found, costs)


def _candidate(draft: DraftModel, name: str, tau: float | None = None) -> Candidate:
    drafter = make_drafter(draft, name)
    kind = "chain" if name.startswith("chain:") else "tree"
    return Candidate(kind, drafter, *(() if tau is None else (_rate(tau, drafter.max_depth), 8.0)))


def _known(tuning: Tuning, compiled: bool) -> dict[str, dict[int, Choice]]:
    """By tree and batch size: plain decoding, the chains of fixed length, and of each batch size the best tree."""
    found: dict[str, dict[int, Choice]] = {PLAIN: {}}
    for size in tuning.batch_sizes:
        choices = tuning.choices_for(size)
        chains = [c for c in choices if c.tree.startswith("chain:") and c.tree.count(":") == 1]
        trees = [c for c in choices if not c.tree.startswith("chain:") and c.tree != PLAIN]
        plain = [c for c in choices if c.tree == PLAIN]
        for choice in (*chains[: 1 if compiled else None], *trees[:1], *plain):
            found.setdefault(choice.tree, {})[size] = choice
    return found


def _rate(tau: float, depth: int) -> float:
    """The acceptance rate, the same at every depth, that gives so many tokens per step."""
    low, high = 0.0, 1.0
    for _ in range(30):
        rate = (low + high) / 2
        low, high = (low, rate) if sum(rate**d for d in range(depth + 1)) > tau else (rate, high)
    return low


def _lookup_seconds(
    tuning: Tuning, size: int, plain: float | None, lengths: Iterable[int]
) -> dict[str, float]:
    """A plain step's, with the target's pass over more tokens."""
    if plain is None or not tuning.verify:
        return {}
    line = tuning.verify_line(size)
    passes = {n: on_line(line, 1 + n) for n in lengths}
    return {f"lookup:{n}": plain * max(seconds / on_line(line, 1), 1.0) for n, seconds in passes.items()}
