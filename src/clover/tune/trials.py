"""The candidates really run: batch after batch of the user's prompts, all candidates in turn on each.

Only steps in which all rows run count, so a figure is that of its batch size; prefill is left out. Of a batch that was
decoded several times the median of its seconds counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from clover.drafting import Drafter, make_drafter
from clover.drafting.calibration import Calibration
from clover.drafting.tuning import PLAIN, Choice
from clover.drafts import DraftModel
from clover.engine import Request
from clover.interleaved import take_turns
from clover.target import TargetModel
from clover.tree import parse_tree
from clover.tune.texts import Text
from clover.tune.watch import Step, watch

_WARM_UP_TOKENS = 8
_HOPELESS = 0.85  # of the fastest after the first round: what is slower is not run again


@dataclass(frozen=True)
class Trial:
    """How one tree did at one batch size.

    Args:
        nodes: per row, root included, of the largest tree that was grown.
        mean_nodes: of all trees.
        tokens, steps: of one decoding of all batches; tokens of all rows, the bonus token included.
        seconds, draft_seconds, verify_seconds: for these steps.
        rounds: how often all batches were decoded.
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
    rounds: int

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
        return Choice(self.batch_size, self.tree, self.speed, self.tau, seconds, self.mean_nodes)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def make_batches(texts: Sequence[Text], batch_size: int, most: int) -> list[list[Request]]:
    """At most `most` batches of prompts whose texts are about equally long, so that their rows end together.

    Where there are fewer prompts than rows, prompts stand in several rows.
    """
    ordered = sorted(texts, key=lambda text: -len(text.new))
    count = min(max(len(ordered) // batch_size, 1), most)
    rows = [ordered[number % len(ordered)] for number in range(count * batch_size)]
    requests = [Request(text.prompt, max(len(text.new), 1), text.params) for text in rows]
    return [requests[at : at + batch_size] for at in range(0, len(requests), batch_size)]


def try_trees(
    target: TargetModel,
    draft: DraftModel,
    trees: Sequence[str],
    batches: Sequence[Sequence[Request]],
    calibration: Calibration | None,
    rounds: int,
    enough: Callable[[], bool],
    progress: Callable[[float], None] = lambda share: None,
) -> list[Trial]:
    """Decode all batches with every tree, fastest first in the result.

    Args:
        trees: "none" is plain decoding with the target alone.
        calibration: that the trees will have when they are used.
        rounds: how often at most.
        enough: asked after each batch; True ends the trial.
        progress: called with the share that is done, 0 … 1.
    """
    runners = [_Runner(target, draft, tree, calibration) for tree in trees]
    for runner in runners:
        runner.warm_up(batches[0])
    running = list(runners)
    turns = [(number, batch) for number in range(rounds) for batch in range(len(batches))]
    for turn, (number, batch) in enumerate(turns):
        for runner in take_turns(running, turn):
            runner.decode(batch, batches[batch], turn)
        progress((turn + 1) / len(turns))
        if enough():
            break
        if (number, batch) == (0, len(batches) - 1):
            running = _promising(runners)
    return sorted((runner.trial() for runner in runners), key=lambda trial: -trial.speed)


def _promising(runners: Sequence[_Runner]) -> list[_Runner]:
    fastest = max(runner.trial().speed for runner in runners)
    return [r for r in runners if r.tree == PLAIN or r.trial().speed > _HOPELESS * fastest]


@dataclass
class _Runner:
    """One tree: decodes batches and keeps what its steps took, per batch and round.

    On a GPU a phase's time is known only where the device is waited for, which a run of its own does (`waited`).
    """

    target: TargetModel
    draft: DraftModel
    tree: str
    calibration: Calibration | None
    done: dict[int, list[list[Step]]] = field(default_factory=dict)
    waited: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafter: Drafter | None = None
        if self.tree != PLAIN:
            self.drafter = make_drafter(self.draft, parse_tree(self.tree), self.calibration)

    def warm_up(self, batch: Sequence[Request]) -> None:
        short = [Request(r.prompt, min(r.max_new_tokens, _WARM_UP_TOKENS), r.params) for r in batch]
        self._watch(short, 0)

    def decode(self, number: int, batch: Sequence[Request], seed: int) -> None:
        self.done.setdefault(number, []).append(self._watch(batch, seed))
        if self.target.device.type == "cuda" and not self.waited:
            self.waited = self._watch(batch, seed, synchronize=True)

    def _watch(self, batch: Sequence[Request], seed: int, synchronize: bool = False) -> list[Step]:
        draft = None if self.drafter is None else self.draft
        (steps,) = watch(self.target, draft, [self.drafter], batch, seed, synchronize)
        return steps

    def trial(self) -> Trial:
        batches = [rounds for rounds in self.done.values() if rounds[0]]
        steps = [step.outcome for rounds in batches for step in rounds[0]]
        seconds = sum(median(map(_seconds, rounds)) for rounds in batches)
        timed = self.waited or [step for rounds in batches for run in rounds for step in run]
        return Trial(
            tree=self.tree,
            batch_size=steps[0].batch_size,
            nodes=max(step.nodes for step in steps),
            mean_nodes=fmean(step.nodes for step in steps),
            tokens=sum(sum(step.emitted) for step in steps),
            steps=len(steps),
            seconds=seconds,
            draft_seconds=seconds * sum(step.outcome.draft_seconds for step in timed) / _seconds(timed),
            verify_seconds=seconds * sum(step.verify_seconds for step in timed) / _seconds(timed),
            rounds=min(map(len, batches)),
        )


def _seconds(steps: Sequence[Step]) -> float:
    return sum(step.outcome.seconds for step in steps)
