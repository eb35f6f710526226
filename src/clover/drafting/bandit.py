"""The policy behind the tree "auto": a bandit over plain decoding, chains, trees and prompt lookup.

A candidate's speed is its expected tokens per step divided by the seconds of its step. The fastest one runs. Sometimes
another one is probed, within a budget of time. docs/development/auto.md describes the loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from statistics import fmean

from clover.drafting.base import Drafter, Policy, StepOutcome, UpcomingStep
from clover.drafting.estimates import RunningAcceptance, StepSeconds, even_rate, fit_line
from clover.drafting.plain import PLAIN
from clover.drafting.prompt_lookup import LookupAcceptance, LookupTree
from clover.drafting.tree import Tree
from clover.drafts.ngrams import RepeatingText

_PROBE_SHARE, _PROBE_STEPS = 0.01, 3  # the share of the time that probes may lose, and the steps of one probe
_LEAST_LOSS = 1 / 12  # At least this share of a probe's seconds counts as lost.
# The weight of a tuning: in steps for costs, in observations for acceptance.
_TUNED_STEPS, _TUNED_WEIGHT = 3, 8.0
_TREES_TURN = 6  # While plain steps lead, one probe in this many is a tree.
_FEW = 8  # The draft commits this many positions at negligible cost.
_LOOKUP_COST = 0.05  # The assumed cost of a lookup before any has run, per token, as a share of a plain step.


@dataclass(frozen=True)
class Candidate:
    """A drafter that the policy may choose."""

    tree: Tree
    drafter: Drafter

    @property
    def depth(self) -> int:
        """Return the most tokens that one of its steps can accept."""
        return self.drafter.max_depth


class AutoPolicy(Policy):
    """Runs the candidate with the most expected tokens per second, and probes another one if the budget allows it.

    A probe is three steps, two in a batch. Its loss against the leading candidate, with the commits that the draft must
    make up for, is paid from 1 % of the time of all other steps, so that a poor draft costs about 1 %. Prompt lookup
    needs no probes, because every token shows what it would have gained; in a batch no sequence may lose by it.

    Step times are kept per group of batch sizes (`size_group`). All batch sizes share the estimates of acceptance, and
    all chains share one estimate.

    Args:
        candidates: the candidates by name: plain decoding, at least one chain, trees and prompt lookups.
        costs: known seconds of a step by batch size and candidate.
        taus: known tokens per step by candidate.
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
        # The size nearest to its group's power of two comes last, so that its costs are the ones that remain.
        by_distance = sorted(costs, key=lambda size: abs(log2(size) - size_group(size)), reverse=True)
        self._sizes = {
            size_group(size): StepSeconds(dict(costs[size]), dict.fromkeys(costs[size], _TUNED_STEPS))
            for size in by_distance
        }
        self._group, self._name, self.leader = -1, PLAIN.name, PLAIN.name
        # The probed candidate, and the remaining steps of the probe.
        self._probe, self._probe_steps = PLAIN.name, 0
        self._probes, self._budget = 0, 0.0  # the number of probes, and the seconds that they may lose

    def _assumed(self, name: str, depth: int, taus: Mapping[str, float]) -> RunningAcceptance:
        if name not in taus:
            return RunningAcceptance(depth)
        return RunningAcceptance(depth, even_rate(taus[name], self._depths[name]), _TUNED_WEIGHT)

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        size = self._enter(upcoming.batch_size)
        self._texts = list(upcoming.texts()) if self._lookups else []
        for text in self._texts:
            self._lookup.learn(text)
        self._name = self.leader = PLAIN.name
        if PLAIN.name in size.seconds:
            costs = self._costs(size.seconds)
            speeds = {n: one.tokens(self._depths[n]) / costs[n] for n, one in self._acceptance.items()}
            timed = set(size.seconds)
            if self._chains[0] in timed:
                timed |= set(self._chains)  # The costs of chains are assumed to be linear in their depth.
            self.leader = max(timed & speeds.keys(), key=speeds.__getitem__)
            if not self._probe_steps and self._budget >= 0 and size.machine is not None:
                steps = _PROBE_STEPS if upcoming.batch_size == 1 else _PROBE_STEPS - 1
                self._probe, self._probe_steps = self._rival(timed, speeds, costs), steps
            self._speed = speeds[self.leader]
            self._name = self._probe if self._probe_steps else self._looked_up(costs, upcoming.room)
        return self._candidates[self._name].drafter

    def record(self, outcome: StepOutcome) -> None:
        if not outcome.emitted:
            return  # All sequences are decoded plainly, whatever the choice.
        size, name = self._sizes[self._group], self._name
        if name != PLAIN.name and outcome.nodes == 1:
            return  # Nothing was drafted: the context is full, or the text has no repetition.
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
            self._budget -= max(outcome.seconds - instead, outcome.seconds * _LEAST_LOSS)
        else:
            self._budget = min(self._budget + _PROBE_SHARE * outcome.seconds, 0.0)

    def _enter(self, batch_size: int) -> StepSeconds:
        """Return the costs of the batch's group; a new group starts with those of the nearest group."""
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
        """Return the seconds of a step of each candidate: measured, or from a line through the measured ones.

        Half of the extra cost of the shallowest chain over a plain step is assumed to be the same at every depth.
        """
        plain = known[PLAIN.name]
        chains = [(float(self._depths[name]), known[name]) for name in self._chains if name in known]
        lookups = [(float(self._depths[name]), known[name]) for name in self._lookups if name in known]
        first = fmean((plain, chains[0][1])) if chains else plain
        slope, start = fit_line([(0.0, first), *chains]) if chains else (_LOOKUP_COST * plain, plain)
        copying = fit_line([(0.0, plain), *lookups])[0] if lookups else max(slope, _LOOKUP_COST * plain)
        return {
            name: known.get(name)
            or max(plain + copying * depth if name in self._lookups else start + slope * depth, plain)
            for name, depth in self._depths.items()
        }

    def _rival(self, timed: set[str], speeds: Mapping[str, float], costs: Mapping[str, float]) -> str:
        """Return the candidate to probe: the one that would be the fastest if it accepted as much as the leader.

        The acceptance of the others may come from texts that have ended. While plain steps lead, chains are probed,
        because they are the cheapest test of the draft, and every sixth time a tree. While a chain leads, no other
        chain is probed, because the leader shows the others' costs and acceptance.
        """
        self._probes += 1
        if self._chains[0] not in timed:
            return self._chains[0]
        alike, names = self._acceptance[self.leader], set(speeds) - {self.leader}
        if self.leader == PLAIN.name and (self._probes % _TREES_TURN or names <= set(self._chains)):
            names &= set(self._chains)
        elif self.leader in (PLAIN.name, *self._chains):
            names -= set(self._chains)
        return max(names, key=lambda name: max(speeds[name], alike.tokens(self._depths[name]) / costs[name]))

    def _looked_up(self, costs: Mapping[str, float], room: int) -> str:
        """Return the prompt lookup that is faster than the leader in this step, or else the leader."""
        matches = [text.match for text in self._texts]
        best, most = self.leader, self._speed
        for name in self._lookups if matches and all(matches) else ():
            tokens = [self._lookup.tokens(match, self._depths[name]) for match in matches]
            gains = self._depths[name] < room and min(tokens) * costs[PLAIN.name] >= costs[name]
            if gains and fmean(tokens) / costs[name] > most:
                best, most = name, fmean(tokens) / costs[name]
        return best


def size_group(batch_size: int) -> int:
    """Return the group of similar batch sizes: 1, 2, 3 to 5, 6 to 11, 12 to 22 and so on."""
    return round(log2(batch_size))
