"""What drafts at each step, chosen while it runs: the candidate that gives the most tokens per second at present.

docs/auto.md says how well it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median_low

from clover.drafting.base import Drafter
from clover.drafting.copying import LENGTHS, Copying, copier_name
from clover.drafting.estimates import AcceptanceEstimate, Believed, CatchUpEstimate, CostEstimate
from clover.drafting.policy import Policy, PrefillOutcome, Running, StepOutcome
from clover.drafting.repetition import Copier
from clover.drafting.sizes import Size, Trial, size_group
from clover.drafting.tail import Tail
from clover.drafting.tuning import PLAIN

_MARGIN = 1.03  # a change must promise that much
_NEAR = 1.6  # times as fast as plain steps: an error of the tuning could hide that these are faster
_PLAIN_SHARE, _SHARE = 0.006, 0.01  # of the time may be lost by trials; less where plain steps lead
# Steps' worth of time that may be lost at the start, less where costs are known beforehand, and that may be saved up.
_FIRST_CREDIT, _TUNED_FIRST_CREDIT, _MOST_CREDIT = 4.0, 0.5, 12.0
_TRIAL, _LONGEST_TRIAL, _PLAIN_TRIAL = 4, 24, 3  # steps
# Steps that costs known beforehand, and those taken from another batch size, count for.
_TUNED_STEPS, _GUESSED_STEPS = 3, 2
_SLOPE = 0.1  # guess: what a node costs, in plain steps
_FEW = 32  # positions that the draft takes in with the last step's, at hardly any cost
_HORIZON = 128  # guess: tokens that a row will still emit


@dataclass(frozen=True)
class Candidate:
    """Something that may draft.

    Attributes:
        name: a tree as `parse_tree` takes it, or what the user calls it.
        drafter: grows it.
        accepted: tokens it is believed to have accepted per row and step.
        depth: mean depth of its trees, if that varies from step to step.
    """

    name: str
    drafter: Drafter
    accepted: float
    depth: float | None = None


class AutoPolicy(Policy):
    """Runs the candidate with the most expected tokens per second, or plain steps, and tries others now and then.

    Batch sizes are grouped by powers of two; each group has costs and a leader of its own, acceptance is common to
    all (`CostEstimate`, `AcceptanceEstimate`). The leader changes when another is expected to be 3 % faster. A trial
    is a few steps of another candidate: first of one of unknown cost, then of plain steps, else of the fastest that is
    due. What trials lose is paid from a credit that grows by 1 % of the time, 0.6 % where plain steps lead, and a
    candidate that has lost waits twice as long as before. In a batch the candidate and the leader take turns, so that
    rows that change meanwhile do not speak for one of them. While plain steps lead, one trial tells all: the text is
    as good for the other trees.

    What the draft takes in after plain steps is no part of a candidate's cost: those steps are left out of it, and
    counted as the trial's. While plain steps lead prompts are left to it, too, and it does not take over from them
    unless it wins back what that will take.

    Where texts repeat themselves a step of copies (`Copying`) comes in between, at each step that it is expected to be
    3 % faster at than the leader. It needs no trials: what copies would have been worth is known after every step.

    Args:
        candidates: plain steps need not be among them, they always are.
        costs: per batch size, seconds per step by name, of those worth considering there and of copies; "plain" is a
            plain step. Where no size has any, all are considered, and measured first.
        weight: rows times steps that speak for the candidates' accepted tokens.
        copies: tokens that a step may copy.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        costs: Mapping[int, Mapping[str, float]] | None = None,
        weight: float = 8.0,
        copies: Sequence[int] = LENGTHS,
    ):
        assert candidates, "without a draft there is nothing to choose"
        self._drafters = {candidate.name: candidate.drafter for candidate in candidates}
        self._copying = Copying(copies)
        every = (*self._drafters.values(), *self._copying.copiers.values())
        self.max_nodes = max(drafter.max_nodes for drafter in every)
        self.max_depth = max(drafter.max_depth for drafter in every)
        self._known = (PLAIN, *self._drafters)
        known = {c.name: Believed(max(c.accepted, 0.05), c.drafter.max_depth, c.depth) for c in candidates}
        self._acceptance = AcceptanceEstimate(known, weight)
        self._sizes = {
            size_group(size): Size(
                CostEstimate(known, _TUNED_STEPS),
                (PLAIN, *(name for name in known if name in self._drafters)),
                tuned=True,
            )
            for size, known in (costs or {}).items()
        }
        self._group = -1
        self._first_credit = _TUNED_FIRST_CREDIT if costs else _FIRST_CREDIT
        self._credit: float | None = None  # seconds
        self._pace: float | None = None  # seconds of late per unit of the costs' scale
        self._running = Running(1, 0)
        self._lone: str | None = None  # what is fastest for a single row, as long as the rows are the same
        self._catch_ups = CatchUpEstimate()
        self._trial: Trial | None = None

    # -- the choice ------------------------------------------------------------------------------------------------

    def choose(self, running: Running) -> Drafter | Copier | None:
        size = self._enter(running)
        self._copying.enter(running)
        costs = self._costs(size)
        if self._trial is None:
            size.lead(self._best(size, costs))
            self._trial = self._next_trial(size, costs)
        return self._copier(size, costs, running.room) or self._drafters.get(self._name(size))

    def expects_draft(self, coming: Running) -> bool:
        """Where nobody knows yet what is best the draft is expected; else it must be worth its share of the prompts."""
        size = self._size(size_group(coming.batch_size))
        self._consider(coming)
        costs = self._costs(size)
        return PLAIN not in costs or len(costs) == 1 or self._best(size, costs) != PLAIN

    @property
    def leader(self) -> str:
        """Name of what is held for the best at the present batch size."""
        return self._sizes[self._group].leader if self._group in self._sizes else PLAIN

    @property
    def _trying(self) -> Trial | None:
        """The trial, if the next step is one of its own."""
        return None if self._trial is None or self._trial.rests else self._trial

    def _name(self, size: Size) -> str:
        return size.leader if self._trying is None else self._trying.name

    def _enter(self, running: Running) -> Size:
        at = size_group(running.batch_size)
        size = self._size(at)
        if at != self._group:
            self._trial, self._group = None, at
            size.costs.interrupt()
        self._consider(running)
        return size

    def _consider(self, running: Running) -> None:
        """Judge by what these rows are like."""
        if running.rows != self._running.rows:
            self._lone = None
        self._running = running
        self._acceptance.enter(running.temperature, running.rows or range(running.batch_size))

    def _size(self, group: int) -> Size:
        """The knowledge about a batch size; what is known of the nearest other one where there is none."""
        if group not in self._sizes:
            self._sizes[group] = self._like_nearest(group)
        return self._sizes[group]

    def _like_nearest(self, group: int) -> Size:
        if not self._sizes:
            return Size(CostEstimate({}, _GUESSED_STEPS), self._known)
        known = self._sizes[min(self._sizes, key=lambda other: (abs(other - group), other))]
        return Size(CostEstimate(known.costs.relative, _GUESSED_STEPS), known.names, leader=known.leader)

    def _best(self, size: Size, costs: Mapping[str, float]) -> str:
        """The leader, unless another known candidate is faster by the margin."""
        if not costs:
            return PLAIN
        known = (name for name in size.names if name in costs)
        per_token = {name: costs[name] / self._acceptance.tokens(name) for name in known}
        catch_up = self._catch_up_per_token
        for name in per_token.keys() - {PLAIN}:
            per_token[name] += catch_up
        best = min(per_token, key=per_token.__getitem__)
        if size.leader not in per_token:
            return best
        return best if _MARGIN * per_token[best] < per_token[size.leader] else size.leader

    def _costs(self, size: Size) -> dict[str, float]:
        """Of a step of each known candidate on the present text, and of the tail it leads to; only ratios count."""
        costs = size.costs.steps(self._acceptance.stretch).items()
        emitted = {name: (cost, self._acceptance.tokens(name)) for name, cost in costs if name in self._known}
        return self._with_tail(size, emitted)

    def _with_tail(self, size: Size, steps: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Costs of steps, from what they cost themselves and the tokens that each row has of them."""
        left = self._running.left
        alone = self._alone(size) if left else 0.0
        if not alone:
            return {name: cost for name, (cost, _) in steps.items()}
        tail = Tail(left)
        return {
            name: cost * (1 + tail.surplus(emitted)) + alone * emitted * tail.lag(emitted)
            for name, (cost, emitted) in steps.items()
        }

    # -- copies ----------------------------------------------------------------------------------------------------

    def _copier(self, size: Size, costs: Mapping[str, float], room: int) -> Copier | None:
        """What makes this step's copies, if they are worth more than the leader."""
        if not (self._copying.repeats and size.leader in costs and PLAIN in costs):
            return None
        own = size.costs.relative
        for name in (name for name in self._copying.copiers if name not in own):
            own[name] = self._guess(size, name, min)
            size.costs.presume(name, own[name])
        tokens = self._copying.tokens(own, room)
        charged = self._with_tail(size, {name: (own[name], emitted) for name, emitted in tokens.items()})
        leading = self._acceptance.tokens(size.leader) / costs[size.leader]
        best = max(tokens, key=lambda name: tokens[name] / charged[name], default=None)
        if best is None or tokens[best] / charged[best] <= _MARGIN * leading:
            return None
        return self._copying.copiers[best]

    def _alone(self, size: Size) -> float:
        """What a token costs where a single row is left, on the scale of a larger batch; 0 where that is not known."""
        single = self._sizes.get(0)
        if single is None or single is size or not (size.tuned and single.tuned):
            return 0.0
        if self._lone is None:
            costs = single.costs.steps(self._acceptance.stretch)
            self._lone = min(costs, key=lambda name: costs[name] / self._acceptance.tokens(name))
        cost = single.costs.step(self._lone, self._acceptance.stretch(self._lone))
        return cost / self._acceptance.tokens(self._lone)

    # -- trials ----------------------------------------------------------------------------------------------------

    def _next_trial(self, size: Size, costs: Mapping[str, float]) -> Trial | None:
        """The first of the trials in order that the credit pays for, once the machine's speed is known."""
        if self._credit is None or not size.costs.paced:
            return None
        for name in self._in_order(size, costs):
            if name != PLAIN and name in costs and self._plain_is_due(size, costs):
                return None
            steps = _PLAIN_TRIAL if name == PLAIN else _TRIAL
            if self._expected_loss(size, costs, name, steps) <= self._credit:
                long = PLAIN not in (name, size.leader)
                long = long and self._expected_loss(size, costs, name, _LONGEST_TRIAL) <= self._credit / 2
                return Trial(name, _LONGEST_TRIAL if long else steps)
        return None

    def _plain_is_due(self, size: Size, costs: Mapping[str, float]) -> bool:
        """Whether the credit is saved up for plain steps: not tried yet, and so near that their cost matters most."""
        if size.plain_tried or PLAIN not in costs or size.leader == PLAIN:
            return False
        return self._acceptance.tokens(size.leader) / costs[size.leader] < _NEAR / costs[PLAIN]

    def _in_order(self, size: Size, costs: Mapping[str, float]) -> list[str]:
        """What to try: what costs nobody knows, smallest first; plain steps, to know when to fall back; the fastest."""
        unknown = sorted((name for name in size.names if name not in costs), key=self._nodes)
        others = [name for name in size.names if name in costs and name != size.leader]
        others.sort(key=lambda name: (name != PLAIN, -self._acceptance.tokens(name) / costs[name]))
        if size.leader == PLAIN:
            others = others[:1]
        return unknown + [name for name in others if size.is_due(name)]

    def _nodes(self, name: str) -> int:
        drafter = self._drafters.get(name) or self._copying.copiers.get(name)
        return 1 if drafter is None else drafter.max_nodes

    def _expected_loss(self, size: Size, costs: Mapping[str, float], name: str, steps: int) -> float:
        """Seconds that a trial takes longer than the leader takes for as many tokens."""
        per_token = costs[size.leader] / self._acceptance.tokens(size.leader)
        step = costs[name] if name in costs else self._guess(size, name)
        catch_up = 0.0 if name == PLAIN else self._catch_up
        return steps * size.costs.pace * (step - per_token * self._acceptance.tokens(name)) + catch_up

    def _guess(self, size: Size, name: str, of: Callable[[list[float]], float] = max) -> float:
        """What a candidate of unknown cost may cost: as much per node as the dearest known one, or other `of` them."""
        costs = size.costs.relative
        plain = costs.get(PLAIN, min(costs.values()))
        drafted = ((cost, self._nodes(other) - 1) for other, cost in costs.items() if other != PLAIN)
        slopes = [(cost - plain) / tokens for cost, tokens in drafted]
        return plain + of([_SLOPE * plain, *slopes]) * (self._nodes(name) - 1)

    @property
    def _catch_up(self) -> float:
        """Seconds that the draft needs for what it has not taken in."""
        return self._catch_ups.seconds * self._running.behind * self._running.batch_size

    @property
    def _catch_up_per_token(self) -> float:
        """The same on the costs' scale for each token that a row will still emit; 0 where that is not known."""
        left = self._running.left
        return self._catch_up / (self._pace or inf) / (fmean(left) if left else _HORIZON)

    # -- learning --------------------------------------------------------------------------------------------------

    def record(self, outcome: StepOutcome) -> None:
        size = self._sizes[self._group]
        size.steps += 1
        credit = self._first_credit * outcome.seconds if self._credit is None else self._credit
        most = _MOST_CREDIT * outcome.seconds + self._catch_up
        share = _PLAIN_SHARE if size.leader == PLAIN else _SHARE
        self._credit = min(credit + share * outcome.seconds, most)
        if outcome.drafter is not None and outcome.nodes == 1:
            return  # the end of the context leaves no room for a tree
        if isinstance(outcome.drafter, Copier):
            self._learn_from_copies(size, outcome.drafter, outcome)
        elif self._trying is not None:
            self._learn_from_trial(size, self._trying, outcome)
        else:
            self._learn_from_leader(size, outcome)
            if self._trial is not None:
                self._trial.rests = False
        if size.costs.paced:
            self._pace = size.costs.pace

    def record_prefill(self, outcome: PrefillOutcome) -> None:
        self._catch_ups.observe(outcome.positions, outcome.draft_seconds)

    def _learn_from_leader(self, size: Size, outcome: StepOutcome) -> None:
        name = self._name(size)
        if outcome.caught_up <= _FEW:
            size.costs.observe(name, outcome.seconds, self._stretch(name, outcome))
        if name == PLAIN:
            self._acceptance.fade()
        else:
            self._acceptance.observe(name, outcome.accepted, outcome.nodes - 1)

    def _learn_from_copies(self, size: Size, copier: Copier, outcome: StepOutcome) -> None:
        """What they cost; what they are worth, the texts tell."""
        if size.costs.paced:
            size.costs.compare(copier_name(copier.max_depth), [(outcome.seconds, 1.0)])

    def _learn_from_trial(self, size: Size, trial: Trial, outcome: StepOutcome) -> None:
        trial.left -= 1
        trial.steps.append(outcome)
        trial.rests = outcome.batch_size > 1 and PLAIN not in (trial.name, size.leader)
        if trial.name != PLAIN:
            learn = self._acceptance.observe if size.leader == PLAIN else self._acceptance.compare
            learn(trial.name, outcome.accepted, outcome.nodes - 1)
        if not trial.left or self._hopeless(size, trial):
            self._finish(size, trial)
            self._trial = None

    def _stretch(self, name: str, outcome: StepOutcome) -> float:
        return self._acceptance.stretch(name, outcome.nodes - 1)

    def _hopeless(self, size: Size, trial: Trial) -> bool:
        """Whether two steps have already shown that the text is nothing for a draft; only asked in plain decoding."""
        if size.leader != PLAIN or len(trial.steps) < 2:
            return False
        costs = self._costs(size)
        if trial.name not in costs:
            return False
        needed = costs[trial.name] / costs[PLAIN] - 1
        return trial.emitted / len(trial.steps) - 1 < needed / 2

    def _finish(self, size: Size, trial: Trial) -> None:
        """Learn what the candidate costs, pay for the trial, and say when the next one may be."""
        # The first step in another shape is often slower than those that follow.
        clean = [step for step in trial.steps if not step.caught_up][-3:] or trial.steps[-3:]
        size.costs.compare(trial.name, [(step.seconds, self._stretch(trial.name, step)) for step in clean])
        usual, caught_up = median_low(step.seconds for step in clean), sum(s.caught_up for s in trial.steps)
        positions = caught_up * trial.steps[0].batch_size
        self._catch_ups.observe(positions, max(trial.steps[0].seconds - usual, 0.0))
        # What it is believed to have taken, for a single slow step is another process's doing.
        costs, leader = self._costs(size), size.leader
        instead = trial.emitted * costs[leader] / self._acceptance.tokens(leader)
        lost = size.costs.pace * (len(trial.steps) * costs[trial.name] - instead)
        if self._credit is not None:
            self._credit -= max(lost + self._catch_ups.seconds * positions, 0.0)
        size.end_trial(trial.name, won=self._best(size, costs) == trial.name)
