"""What the engine accepts of a draft: τ, per depth, per group of prompts, by kind of token and by position.

A step emits accepted draft tokens and, last, one bonus token that the target adds itself. A text may end on either, and
its last step does not say which; so the last token of each text is in τ as τ is defined, but in no kind or position.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

from clover.data.tasks import TaskPrompt
from clover.engine import Engine, Request
from clover.evaluate.kinds import TOKEN_KINDS, kinds_of
from clover.interleaved import decode
from clover.metrics import Acceptance
from clover.report.statistics import Estimate, ratio
from clover.sampling import SamplingParams

_FIRST_BIN = 16  # new tokens of the first bin of positions; each later bin ends at twice the one before


@dataclass(frozen=True)
class Continuation:
    """What was written after one prompt: the new tokens of each decoding step, and the counts of τ."""

    prompt: TaskPrompt
    steps: tuple[tuple[int, ...], ...]
    acceptance: Acceptance

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens."""
        return tuple(chain(*self.steps))

    @property
    def drafted(self) -> list[bool]:
        """Whether each new token but the last was an accepted draft token."""
        return [place < len(step) - 1 for step in self.steps for place in range(len(step))][:-1]


@dataclass(frozen=True)
class Group:
    """The prompts of one group, each with its acceptance. What is estimated has its standard error over prompts."""

    name: str
    acceptances: tuple[Acceptance, ...]

    @property
    def total(self) -> Acceptance:
        """Of all prompts together."""
        return reduce(add, self.acceptances, Acceptance())

    @property
    def tau(self) -> Estimate:
        """Tokens per step, the bonus token included."""
        return ratio(tau_pairs(self.acceptances))

    @property
    def depths(self) -> list[Estimate]:
        """The share accepted at depth 1, 2, … of the steps that got to a draft there."""
        return [ratio(depth_pairs(self.acceptances, depth)) for depth in range(len(self.total.attempts))]

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        errors = {"tau_error": self.tau.error, "depth_errors": [depth.error for depth in self.depths]}
        return {"group": self.name, "prompts": len(self.acceptances), **self.total.to_dict(), **errors}


@dataclass(frozen=True)
class Share:
    """Of the new tokens with a label those that were accepted draft tokens; bonus tokens are the others.

    Args:
        emitted: all new tokens with this label.
        share: 0 … 1, with its standard error over texts.
    """

    label: str
    emitted: int
    share: Estimate


@dataclass(frozen=True)
class Setting:
    """One tree at one temperature.

    Args:
        tree: as the user named it.
        nodes: draft tokens verified per step at most.
        groups: in the order of the prompts.
        kinds: by kind of token.
        positions: by number of the new token in its text, from 1.
    """

    tree: str
    nodes: int
    temperature: float
    groups: tuple[Group, ...]
    kinds: tuple[Share, ...]
    positions: tuple[Share, ...]

    @property
    def all(self) -> Group:
        """All groups together."""
        return Group("all", tuple(chain(*(group.acceptances for group in self.groups))))

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        groups = [group.to_dict() for group in self.groups]
        return asdict(self) | self.all.to_dict() | {"groups": groups}


def tau_pairs(acceptances: Sequence[Acceptance]) -> list[tuple[int, int]]:
    """Tokens and steps of each text; their ratio is τ."""
    return [(one.emitted, one.steps) for one in acceptances]


def depth_pairs(acceptances: Sequence[Acceptance], depth: int) -> list[tuple[int, int]]:
    """Of each text the steps that accepted a token at `depth`, from 0, and those that got to a draft there."""
    return [(sum(one.histogram[depth + 1 :]), sum(one.attempts[depth : depth + 1])) for one in acceptances]


def continue_prompts(
    engine: Engine,
    prompts: Sequence[TaskPrompt],
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Continuation]:
    """Let the engine continue prompts; prompt i is sampled with `seed + i`.

    Args:
        progress: called after each batch with the share that is done, 0 … 1.
    """
    requests = [
        Request(prompt.tokens, max_new_tokens, SamplingParams(temperature=temperature, seed=seed + i))
        for i, prompt in enumerate(prompts)
    ]
    done: list[Continuation] = []
    for start in range(0, len(prompts), batch_size):
        run = decode(engine, requests[start : start + batch_size])
        done += map(Continuation, prompts[start : start + batch_size], run.steps, run.acceptances)
        progress(len(done) / len(prompts))
    return done


def count_groups(continuations: Sequence[Continuation]) -> tuple[Group, ...]:
    """Acceptance per group of prompts."""
    groups: dict[str, list[Acceptance]] = {}
    for one in continuations:
        groups.setdefault(one.prompt.group, []).append(one.acceptance)
    return tuple(Group(name, tuple(found)) for name, found in groups.items())


def count_kinds(continuations: Sequence[Continuation], tokenizer: Any) -> tuple[Share, ...]:
    """Share of accepted draft tokens per kind of token that occurs, in the order of TOKEN_KINDS."""
    texts = [([*one.prompt.tokens, *one.tokens[:-1]], len(one.prompt.tokens)) for one in continuations]
    return _count(TOKEN_KINDS, kinds_of(tokenizer, texts), continuations)


def count_positions(continuations: Sequence[Continuation]) -> tuple[Share, ...]:
    """Share of accepted draft tokens per bin of positions: new tokens 1–16, 17–32, 33–64, 65–128 and so on."""
    longest = max(len(one.drafted) for one in continuations)
    ends = [_FIRST_BIN]
    while ends[-1] < longest:
        ends.append(2 * ends[-1])
    names = [f"{start + 1}–{end}" for start, end in zip([0, *ends], ends, strict=False)]
    bins = [names[bisect_right(ends, place)] for place in range(longest)]
    return _count(names, [bins[: len(one.drafted)] for one in continuations], continuations)


def _count(
    names: Sequence[str], labels: Sequence[Sequence[str]], continuations: Sequence[Continuation]
) -> tuple[Share, ...]:
    """One share per name that occurs, where each new token of each text has a label."""
    counts = [
        Counter(zip(own, one.drafted, strict=True)) for own, one in zip(labels, continuations, strict=True)
    ]
    pairs = {
        name: [(one[name, True], one[name, True] + one[name, False]) for one in counts] for name in names
    }
    emitted = {name: sum(total for _, total in found) for name, found in pairs.items()}
    return tuple(Share(name, emitted[name], ratio(pairs[name])) for name in names if emitted[name])
