"""What the engine accepts of a draft: τ, per depth, per group of prompts and by kind of token.

A step emits accepted draft tokens and, last, one bonus token that the target adds itself. A text may end on either, and
its last step does not say which; so the last token of each text is in τ as τ is defined, but in no kind.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from hashlib import blake2b
from itertools import chain
from operator import add
from typing import Any

from typing_extensions import Self

from clover.data.tasks import TaskPrompt
from clover.engine import Engine, Request
from clover.measure.evaluate.kinds import TOKEN_KINDS, kinds_of
from clover.measure.report.statistics import Estimate, ratio
from clover.metrics import Acceptance
from clover.sampling import SamplingParams


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
    """The prompts of one group, by their hashes, each with its acceptance.

    What is estimated has its standard error over prompts.
    """

    name: str
    prompts: tuple[str, ...]
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
        """All numbers as JSON values; `per_prompt` has the new tokens and the steps of each, `prompt_hashes` which."""
        errors = {"tau_error": self.tau.error, "depth_errors": [depth.error for depth in self.depths]}
        each = {"per_prompt": tau_pairs(self.acceptances), "prompt_hashes": list(self.prompts)}
        counts = self.total.to_dict() | each
        return {"group": self.name, "prompts": len(self.acceptances), **counts, **errors}


@dataclass(frozen=True)
class Share:
    """Of the new tokens of a kind those that were accepted draft tokens, 0 … 1; bonus tokens are the others."""

    kind: str
    emitted: int
    share: Estimate


@dataclass(frozen=True)
class Setting:
    """One tree, as the user named it, at one temperature, and draft tokens verified per step at most."""

    tree: str
    nodes: int
    temperature: float
    groups: tuple[Group, ...]
    kinds: tuple[Share, ...]

    @classmethod
    def of(
        cls, tree: str, engine: Engine, temperature: float, written: Sequence[Continuation], tokenizer: Any
    ) -> Self:
        """Count what was written."""
        groups, kinds = count_groups(written), count_kinds(written, tokenizer)
        return cls(tree, engine.policy.max_nodes - 1, temperature, groups, kinds)

    @property
    def all(self) -> Group:
        """All groups together."""
        prompts = chain(*(group.prompts for group in self.groups))
        return Group("all", tuple(prompts), tuple(chain(*(group.acceptances for group in self.groups))))

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
    """Let the engine continue prompts, so many at once; prompt i is sampled with `seed + i`.

    `progress` is called after each text's step with the share that is done, 0 … 1; a text that ends early is done.
    """
    requests = [
        Request(prompt.tokens, max_new_tokens, SamplingParams(temperature=temperature, seed=seed + i))
        for i, prompt in enumerate(prompts)
    ]
    steps: list[list[tuple[int, ...]]] = [[] for _ in prompts]
    acceptances = [Acceptance() for _ in prompts]
    done, total = 0, max_new_tokens * len(prompts)
    for event in engine.run(requests, max_sequences=batch_size):
        steps[event.index].append(event.tokens)
        done += len(event.tokens)
        if event.generation is not None:
            acceptances[event.index] = event.generation.acceptance
            done += max_new_tokens - len(event.generation.tokens)  # it may have ended early
        progress(done / total)
    return list(map(Continuation, prompts, map(tuple, steps), acceptances))


def count_groups(continuations: Sequence[Continuation]) -> tuple[Group, ...]:
    """Acceptance per group of prompts."""
    groups: dict[str, list[Continuation]] = {}
    for one in continuations:
        groups.setdefault(one.prompt.group, []).append(one)
    return tuple(
        Group(
            name, tuple(prompt_hash(one.prompt.tokens) for one in some), tuple(one.acceptance for one in some)
        )
        for name, some in groups.items()
    )


def prompt_hash(tokens: Sequence[int]) -> str:
    """8 hexadecimal digits that stand for the tokens of a prompt.

    >>> prompt_hash((1, 23)) == prompt_hash([1, 23]) != prompt_hash((12, 3))
    True
    """
    return blake2b(" ".join(map(str, tokens)).encode(), digest_size=4).hexdigest()


def count_kinds(continuations: Sequence[Continuation], tokenizer: Any) -> tuple[Share, ...]:
    """Share of accepted draft tokens per kind of token that occurs, in the order of TOKEN_KINDS."""
    texts = [([*one.prompt.tokens, *one.tokens[:-1]], len(one.prompt.tokens)) for one in continuations]
    kinds = kinds_of(tokenizer, texts)
    counts = [
        Counter(zip(own, one.drafted, strict=True)) for own, one in zip(kinds, continuations, strict=True)
    ]
    pairs = {
        kind: [(one[kind, True], one[kind, True] + one[kind, False]) for one in counts]
        for kind in TOKEN_KINDS
    }
    emitted = {kind: sum(total for _, total in found) for kind, found in pairs.items()}
    return tuple(Share(kind, number, ratio(pairs[kind])) for kind, number in emitted.items() if number)
