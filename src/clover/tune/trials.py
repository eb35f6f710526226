"""The candidates really run: every one decodes batches of the user's prompts, and then all take turns at each step.

What a candidate has accepted is counted where it decodes whole batches by itself. Seconds from there would not compare:
minutes lie between the first candidate and the last, and the machine may have had other things to do in some of them.
So what a step takes is measured where all candidates take turns from step to step within one run.

Only steps in which all rows run count, so a figure is that of its batch size; prefill is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from statistics import fmean, median
from typing import Any

from clover.drafting import Drafter, make_drafter
from clover.drafting.tuning import PLAIN, Choice
from clover.drafts import DraftModel
from clover.engine import Request
from clover.interleaved import take_turns
from clover.target import TargetModel
from clover.tree import parse_tree
from clover.tune.texts import Text
from clover.tune.watch import Step, watch

_WARM_UP_TOKENS = 8
_DECODING = 0.6  # of the time, for whole batches
_FEWEST = 9  # steps of each candidate that are timed, however little time there is
_SHORTEST_RUN = 64  # new tokens of a run in which steps are timed


@dataclass(frozen=True)
class Trial:
    """How one tree did at one batch size.

    Args:
        nodes: per row, root included, of the largest tree that was grown.
        mean_nodes: of all trees.
        tokens, steps: of one decoding of all batches; tokens of all rows, the bonus token included.
        seconds, draft_seconds, verify_seconds: for these steps, if each takes what it takes in turn with the others'.
        timed: steps in turn.
    """

    tree: str
    batch_size: int
    nodes: int
    mean_nodes: float
    tokens: int
    steps: int
    seconds: float
    draft_seconds: float
    verify_seconds: float
    timed: int

    @property
    def speed(self) -> float:
        """Tokens per second of the whole batch."""
        return self.tokens / self.seconds

    @property
    def tau(self) -> float:
        """Tokens per step and row."""
        return self.tokens / (self.steps * self.batch_size)

    def choice(self) -> Choice:
        """As it is saved."""
        seconds = self.seconds / self.steps
        return Choice(self.batch_size, self.tree, self.tau, seconds, self.speed)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def make_batches(texts: Sequence[Text], batch_size: int, most: int) -> list[list[Request]]:
    """At most `most` batches of prompts whose texts are about equally long, so that their rows end together.

    Where there are fewer prompts than rows, prompts stand in several rows.
    """
    ordered = sorted(texts, key=lambda text: -len(text.new))
    batches = min(max(len(ordered) // batch_size, 1), most)
    rows = [ordered[number % len(ordered)] for number in range(batches * batch_size)]
    requests = [Request(text.prompt, max(len(text.new), 1), text.params) for text in rows]
    return [requests[at : at + batch_size] for at in range(0, len(requests), batch_size)]


def try_trees(
    target: TargetModel,
    draft: DraftModel,
    trees: Sequence[str],
    batches: Sequence[Sequence[Request]],
    expected: Callable[[int], float],
    repeats: int,
    enough: Callable[[float], bool],
    progress: Callable[[float], None] = lambda share: None,
) -> list[Trial]:
    """Decode the batches with every tree, and time their steps in turn; fastest first in the result.

    Args:
        trees: "plain" is plain decoding with the target alone.
        expected: seconds of a step by the nodes of its tree, of which only ratios count.
        repeats: steps of each tree that are timed.
        enough: whether this share of the time is over; at least one batch is decoded, and a few steps are timed.
        progress: called with the share that is done, 0 … 1.
    """
    runners = [_Runner(target, draft, tree) for tree in trees]
    for runner in runners:
        runner.warm_up(batches[0])
    for turn, batch in enumerate(batches):
        for runner in take_turns(runners, turn):
            runner.decode(batch)
        progress(_DECODING * (turn + 1) / len(batches))
        if enough(_DECODING):
            break
    fewest = 0
    for turn in count():
        fewest = _time(runners, batches[turn % len(batches)], turn)
        progress(_DECODING + (1 - _DECODING) * min(fewest / repeats, 1.0))
        if fewest >= repeats or (fewest >= _FEWEST and enough(1.0)):
            break
    return sorted((runner.trial(expected) for runner in runners), key=lambda trial: -trial.speed)


def _time(runners: Sequence[_Runner], batch: Sequence[Request], seed: int) -> int:
    """Let all take turns along the texts of a batch, and say how many steps of each were timed so far at least."""
    target, draft = runners[0].target, runners[0].draft
    requests = []
    for one in batch:
        most = max(one.max_new_tokens, min(_SHORTEST_RUN, target.context_length - len(one.prompt)))
        requests.append(replace(one, max_new_tokens=most, eos=()))
    for runner, steps in zip(
        runners, watch(target, draft, [one.drafter for one in runners], requests, seed), strict=True
    ):
        runner.timed += steps
    return min(len(runner.timed) for runner in runners)


@dataclass
class _Runner:
    """One tree: decodes batches and keeps its steps.

    On a GPU a phase's time is known only where the device is waited for, which a run of its own does (`waited`).

    Attributes:
        decoded: steps of whole batches.
        timed: steps in turn with those of the others.
    """

    target: TargetModel
    draft: DraftModel
    tree: str
    decoded: list[Step] = field(default_factory=list)
    timed: list[Step] = field(default_factory=list)
    waited: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafter: Drafter | None = None
        if self.tree != PLAIN:
            self.drafter = make_drafter(self.draft, parse_tree(self.tree))

    def warm_up(self, batch: Sequence[Request]) -> None:
        self._watch([replace(one, max_new_tokens=min(one.max_new_tokens, _WARM_UP_TOKENS)) for one in batch])

    def decode(self, batch: Sequence[Request]) -> None:
        self.decoded += self._watch(batch)
        if self.target.device.type == "cuda" and not self.waited:
            self.waited = self._watch(batch, synchronize=True)

    def _watch(self, batch: Sequence[Request], synchronize: bool = False) -> list[Step]:
        draft = None if self.drafter is None else self.draft
        (steps,) = watch(self.target, draft, [self.drafter], batch, synchronize=synchronize)
        return steps

    def trial(self, expected: Callable[[int], float]) -> Trial:
        steps = [step.outcome for step in self.decoded]
        seconds = self._pace(expected) * sum(expected(step.nodes) for step in steps)
        split = self.waited or self.decoded
        whole = sum(step.outcome.seconds for step in split)
        return Trial(
            tree=self.tree,
            batch_size=steps[0].batch_size,
            nodes=max(step.nodes for step in steps),
            mean_nodes=fmean(step.nodes for step in steps),
            tokens=sum(sum(step.emitted) for step in steps),
            steps=len(steps),
            seconds=seconds,
            draft_seconds=seconds * sum(step.outcome.draft_seconds for step in split) / whole,
            verify_seconds=seconds * sum(step.verify_seconds for step in split) / whole,
            timed=len(self.timed),
        )

    def _pace(self, expected: Callable[[int], float]) -> float:
        """Seconds in turn over those expected: trees that vary in depth are not as deep there as in whole batches."""
        # After a plain step the draft has more to take in than it has when it drafts at every step.
        usual = [step for step in self.timed if not step.outcome.caught_up] or self.timed
        return median(step.outcome.seconds / expected(step.outcome.nodes) for step in usual)
