"""Count the draft tokens that the engine accepts: τ, per depth, per group of prompts and per kind of token.

A step emits accepted draft tokens, and then one bonus token from the target. The last token of a text may be either,
and its step does not record which. So the last token of each text counts in τ, but in no kind of token.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from hashlib import blake2b
from itertools import chain
from operator import add
from typing import Any

from clover.data.tasks import TaskPrompt
from clover.measure.kinds import TOKEN_KINDS, kinds_of
from clover.measure.report.statistics import Estimate, ratio
from clover.measure.timing import Run
from clover.metrics import Acceptance

_FIRST_RANGE = 256  # positions


@dataclass(frozen=True)
class Group:
    """The prompts of one group, as hashes, each with its acceptance.

    The errors of the estimates are standard errors over prompts.
    """

    name: str
    prompts: tuple[str, ...]
    acceptances: tuple[Acceptance, ...]

    @property
    def total(self) -> Acceptance:
        """Return the acceptance of all prompts together."""
        return reduce(add, self.acceptances, Acceptance())

    @property
    def tau(self) -> Estimate:
        """Return the tokens per step, including the bonus token."""
        return ratio(tau_pairs(self.acceptances))

    @property
    def depths(self) -> list[Estimate]:
        """Return, for depth 1, 2, …, the share accepted of the steps that reached a draft token there."""
        return [ratio(depth_pairs(self.acceptances, depth)) for depth in range(len(self.total.attempts))]

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON values; `per_prompt` has new tokens and steps, `prompt_hashes` the prompts."""
        errors = {"tau_error": self.tau.error, "depth_errors": [depth.error for depth in self.depths]}
        each = {"per_prompt": tau_pairs(self.acceptances), "prompt_hashes": list(self.prompts)}
        counts = self.total.to_dict() | each
        return {"group": self.name, "prompts": len(self.acceptances), **counts, **errors}


@dataclass(frozen=True)
class Share:
    """The share, 0 … 1, of accepted draft tokens in the `emitted` new tokens of a kind; the rest are bonus tokens."""

    kind: str
    emitted: int
    share: Estimate


@dataclass(frozen=True)
class PositionBin:
    """The steps that begin at positions `start` to `end` - 1, prompts included, and their τ."""

    start: int
    end: int
    texts: int
    steps: int
    tokens: int
    tau: Estimate


@dataclass(frozen=True)
class EvaluatedSetting:
    """The acceptance of one tree, by the user's name for it, at one temperature.

    `budget` is the most draft tokens in one tree, without the root.
    """

    tree: str
    budget: int
    temperature: float
    groups: tuple[Group, ...]
    kinds: tuple[Share, ...]
    places: tuple[PositionBin, ...] = ()

    @property
    def all(self) -> Group:
        """Return all groups together."""
        prompts = chain(*(group.prompts for group in self.groups))
        return Group("all", tuple(prompts), tuple(chain(*(group.acceptances for group in self.groups))))

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON values."""
        groups = [group.to_dict() for group in self.groups]
        return asdict(self) | self.all.to_dict() | {"groups": groups}


def tau_pairs(acceptances: Sequence[Acceptance]) -> list[tuple[int, int]]:
    """Return the tokens and the steps of each text, whose ratio is τ."""
    return [(one.emitted, one.steps) for one in acceptances]


def depth_pairs(acceptances: Sequence[Acceptance], depth: int) -> list[tuple[int, int]]:
    """Return, per text, the steps that accepted a token at `depth`, from 0, and those that reached a draft there."""
    return [(sum(one.histogram[depth + 1 :]), sum(one.attempts[depth : depth + 1])) for one in acceptances]


def count_groups(prompts: Sequence[TaskPrompt], run: Run) -> tuple[Group, ...]:
    """Return the acceptance per group of the prompts that a run continued."""
    groups: dict[str, list[tuple[str, Acceptance]]] = {}
    for prompt, acceptance in zip(prompts, run.acceptances, strict=True):
        groups.setdefault(prompt.group, []).append((prompt_hash(prompt.tokens), acceptance))
    return tuple(Group(name, *map(tuple, zip(*some, strict=True))) for name, some in groups.items())


def prompt_hash(tokens: Sequence[int]) -> str:
    """Return a hash of the tokens of a prompt, as 8 hexadecimal digits.

    >>> prompt_hash((1, 23)) == prompt_hash([1, 23]) != prompt_hash((12, 3))
    True
    """
    return blake2b(" ".join(map(str, tokens)).encode(), digest_size=4).hexdigest()


def count_kinds(prompts: Sequence[TaskPrompt], run: Run, tokenizer: Any) -> tuple[Share, ...]:
    """Return the share of accepted draft tokens for each kind that occurs, in the order of TOKEN_KINDS."""
    texts = [
        ([*prompt.tokens, *new[:-1]], len(prompt.tokens))
        for prompt, new in zip(prompts, run.texts, strict=True)
    ]
    counts = [
        Counter(zip(kinds, drafted_tokens(steps), strict=True))
        for kinds, steps in zip(kinds_of(tokenizer, texts), run.steps, strict=True)
    ]
    found = []
    for kind in TOKEN_KINDS:
        pairs = [(one[kind, True], one[kind, True] + one[kind, False]) for one in counts]
        emitted = sum(total for _, total in pairs)
        if emitted:
            found.append(Share(kind, emitted, ratio(pairs)))
    return tuple(found)


def count_places(prompts: Sequence[TaskPrompt], run: Run) -> tuple[PositionBin, ...]:
    """Return τ by the first position of steps: below 256, and then in ranges that double."""
    places: dict[int, dict[int, list[int]]] = {}  # by range and text, its tokens and steps
    for text, (prompt, steps) in enumerate(zip(prompts, run.steps, strict=True)):
        at = len(prompt.tokens)
        for step in steps:
            counts = places.setdefault((at // _FIRST_RANGE).bit_length(), {}).setdefault(text, [0, 0])
            counts[0] += len(step)
            counts[1] += 1
            at += len(step)
    found = []
    for number, texts in sorted(places.items()):
        pairs = [(tokens, steps) for tokens, steps in texts.values()]
        start, end = _FIRST_RANGE * 2**number // 2 if number else 0, _FIRST_RANGE * 2**number
        tokens, steps = map(sum, zip(*pairs, strict=True))
        found.append(PositionBin(start, end, len(texts), steps, tokens, ratio(pairs)))
    return tuple(found)


def drafted_tokens(steps: Sequence[Sequence[int]]) -> list[bool]:
    """Return, for each new token of a text but the last, whether it was an accepted draft token."""
    return [place < len(step) - 1 for step in steps for place in range(len(step))][:-1]
