"""What the engine accepts of a draft: τ, per depth, per group of prompts, by kind of token and by position.

A step emits accepted draft tokens and, last, one bonus token that the target adds itself. A text may end on either, and
its last step does not say which; so the last token of each text is in τ as τ is defined, but in no kind or position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

from clover.data.tasks import TaskPrompt
from clover.engine import Engine, Generation, Request
from clover.evaluate.kinds import TOKEN_KINDS, TokenKinds
from clover.metrics import Acceptance
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
        return tuple(token for step in self.steps for token in step)

    @property
    def drafted(self) -> tuple[bool, ...]:
        """Whether each new token but the last was an accepted draft token."""
        flags = [place < len(step) - 1 for step in self.steps for place in range(len(step))]
        return tuple(flags[:-1])


@dataclass(frozen=True)
class Share:
    """Of `emitted` new tokens with this label `accepted` were accepted draft tokens; bonus tokens are the others."""

    label: str
    emitted: int
    accepted: int

    @property
    def share(self) -> float:
        """0 … 1; 0 of nothing is 0."""
        return self.accepted / self.emitted if self.emitted else 0.0


@dataclass(frozen=True)
class GroupAcceptance:
    """The prompts of one group."""

    group: str
    prompts: int
    acceptance: Acceptance


@dataclass(frozen=True)
class SettingResult:
    """One tree at one temperature.

    Args:
        tree: as the user named it.
        nodes: draft tokens verified per step at most.
        groups: in the order of the prompts.
        kinds: by kind of token, all of TOKEN_KINDS.
        positions: by number of the new token in its text, from 1.
    """

    tree: str
    nodes: int
    temperature: float
    groups: tuple[GroupAcceptance, ...]
    kinds: tuple[Share, ...]
    positions: tuple[Share, ...]

    @property
    def acceptance(self) -> Acceptance:
        """Of all groups together."""
        return reduce(add, (group.acceptance for group in self.groups), Acceptance())

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        groups = [{"group": g.group, "prompts": g.prompts, **g.acceptance.to_dict()} for g in self.groups]
        return {
            "tree": self.tree,
            "nodes": self.nodes,
            "temperature": self.temperature,
            **self.acceptance.to_dict(),
            "groups": groups,
            "kinds": [{**asdict(share), "share": share.share} for share in self.kinds],
            "positions": [{**asdict(share), "share": share.share} for share in self.positions],
        }


def continue_prompts(
    engine: Engine,
    prompts: Sequence[TaskPrompt],
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[Continuation]:
    """Let the engine continue prompts; prompt i is sampled with `seed + i`.

    Args:
        progress: called after each batch with the most tokens that its prompts could have got.
    """
    done: list[Continuation] = []
    for start in range(0, len(prompts), batch_size):
        some = prompts[start : start + batch_size]
        requests = [
            Request(p.tokens, max_new_tokens, SamplingParams(temperature=temperature, seed=seed + start + i))
            for i, p in enumerate(some)
        ]
        done += _run(engine, some, requests)
        progress(len(some) * max_new_tokens)
    return done


def _run(
    engine: Engine, prompts: Sequence[TaskPrompt], requests: Sequence[Request]
) -> Iterator[Continuation]:
    steps: list[list[tuple[int, ...]]] = [[] for _ in requests]
    finished: dict[int, Generation] = {}
    for event in engine.run(requests):
        steps[event.index].append(event.tokens)
        if event.generation is not None:
            finished[event.index] = event.generation
    for row, prompt in enumerate(prompts):
        yield Continuation(prompt, tuple(steps[row]), finished[row].acceptance)


def summarize(
    tree: str, nodes: int, temperature: float, continuations: Sequence[Continuation], tokenizer: Any
) -> SettingResult:
    """Count what continuations of one tree at one temperature say."""
    return SettingResult(
        tree,
        nodes,
        temperature,
        count_groups(continuations),
        count_kinds(continuations, tokenizer),
        count_positions(continuations),
    )


def count_groups(continuations: Sequence[Continuation]) -> tuple[GroupAcceptance, ...]:
    """Acceptance per group of prompts."""
    groups: dict[str, list[Acceptance]] = {}
    for one in continuations:
        groups.setdefault(one.prompt.group, []).append(one.acceptance)
    return tuple(
        GroupAcceptance(group, len(parts), reduce(add, parts, Acceptance()))
        for group, parts in groups.items()
    )


def count_kinds(continuations: Sequence[Continuation], tokenizer: Any) -> tuple[Share, ...]:
    """Share of accepted draft tokens per kind of token, in the order of TOKEN_KINDS."""
    kinds = TokenKinds(tokenizer)
    found: list[tuple[str, bool]] = []
    for one in continuations:
        text = [*one.prompt.tokens, *one.tokens[:-1]]
        found += zip(kinds.of(text, len(one.prompt.tokens)), one.drafted, strict=True)
    return tuple(_share(kind, [drafted for name, drafted in found if name == kind]) for kind in TOKEN_KINDS)


def count_positions(continuations: Sequence[Continuation]) -> tuple[Share, ...]:
    """Share of accepted draft tokens per bin of positions: new tokens 1–16, 17–32, 33–64, 65–128 and so on."""
    columns: list[list[bool]] = []
    for one in continuations:
        columns.extend([] for _ in range(len(one.drafted) - len(columns)))
        for place, drafted in enumerate(one.drafted):
            columns[place].append(drafted)
    bins, start, end = [], 0, _FIRST_BIN
    while start < len(columns):
        inside = [drafted for column in columns[start:end] for drafted in column]
        bins.append(_share(f"{start + 1}–{end}", inside))
        start, end = end, 2 * end
    return tuple(bins)


def _share(label: str, drafted: Sequence[bool]) -> Share:
    return Share(label, len(drafted), sum(drafted))
