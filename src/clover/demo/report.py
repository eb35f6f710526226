"""From measured rounds to the figures of the demo: per method and temperature, and for the JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

import torch

from clover.demo.measure import PLAIN, Round
from clover.metrics import Acceptance
from clover.target import TargetModel

LABELS = {"plain": "plain", "clover2": "Clover-2", "transformers": "transformers"}


@dataclass(frozen=True)
class MethodResult:
    """One row of the table.

    Args:
        name: "plain", "transformers" (its own `generate`), or the draft's system.
        temperature: 0 is greedy.
        tokens_per_second: all tokens of all prompts over all seconds, prefill and drafting included.
        tau: tokens per decoding step, the bonus token included.
        acceptance_per_depth: share accepted at depth 1, 2, …; empty without a draft.
        speedup: tokens_per_second over that of plain decoding.
        ideal_speedup: τ · plain step / verify step, what a draft that costs nothing would give; None without a draft.
        identical: whether every text is token by token that of plain decoding.
        ideal_share: speedup / ideal_speedup.
        identical_prompts, prompts: of so many prompts so many texts are identical.
        tokens, seconds: the totals behind tokens_per_second.
        speedup_per_prompt: the speed-up on each prompt alone.
        plain_step_seconds, verify_step_seconds: the means that ideal_speedup is made of.
    """

    name: str
    temperature: float
    tokens_per_second: float
    tau: float
    acceptance_per_depth: list[float]
    speedup: float
    ideal_speedup: float | None
    identical: bool
    ideal_share: float | None
    identical_prompts: int
    prompts: int
    tokens: int
    seconds: float
    speedup_per_prompt: list[float]
    plain_step_seconds: float | None = None
    verify_step_seconds: float | None = None

    @property
    def label(self) -> str:
        """The method's name for people."""
        return LABELS.get(self.name, self.name)

    @property
    def drafted(self) -> bool:
        """Whether a draft took part."""
        return self.ideal_speedup is not None


@dataclass(frozen=True)
class Difference:
    """Where a greedy text leaves that of plain decoding.

    Args:
        prompt: its number, from 1.
        position: of the first new token that differs, from 1.
        gap: how far apart the target's logits of the two tokens are when it reads the text up to there at once;
            None where one text goes on after the other has ended.
    """

    prompt: int
    position: int
    gap: float | None


@dataclass(frozen=True)
class Report:
    """Everything a demo found; `to_dict` is what `--json` writes."""

    device: str
    dtype: str
    target: str
    draft: str
    methods: list[MethodResult]
    versions: dict[str, str]
    command: str
    machine: str
    date: str
    tree_nodes: int
    prompts: int
    max_new_tokens: int
    seconds: float
    differences: list[Difference]
    out_of_time: int = 0  # prompts that were left out

    @property
    def drafted(self) -> list[MethodResult]:
        """The rows of the draft, greedy first."""
        return [method for method in self.methods if method.drafted]

    @property
    def exact(self) -> bool:
        """Whether the dtype is one in which only a tie of two logits can excuse a difference."""
        return self.dtype in ("float32", "float64")

    @property
    def defect(self) -> bool:
        """Whether a greedy text differs in a way that rounding does not explain."""
        return self.exact and any(found.gap is None or found.gap > 1e-3 for found in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


def summarize(rounds: Sequence[Round]) -> list[MethodResult]:
    """Results of rounds at any temperatures, one per temperature and method, in the order they were run."""
    results = []
    for temperature in dict.fromkeys(r.temperature for r in rounds):
        chosen = [r for r in rounds if r.temperature == temperature]
        results += [_result(name, chosen) for name in chosen[0].runs]
    return results


def _result(name: str, rounds: Sequence[Round]) -> MethodResult:
    runs, plain = [r.runs[name] for r in rounds], [r.runs[PLAIN] for r in rounds]
    acceptance = reduce(add, (run.acceptance for run in runs), Acceptance())
    speeds = [_speed([run]) / _speed([base]) for run, base in zip(runs, plain, strict=True)]
    speedup = _speed(runs) / _speed(plain)
    same = sum(run.tokens == base.tokens for run, base in zip(runs, plain, strict=True))
    plain_step, verify_step = _step_seconds(rounds) if acceptance.drafted else (None, None)
    ideal = acceptance.tau * plain_step / verify_step if plain_step and verify_step else None
    return MethodResult(
        name=name,
        temperature=rounds[0].temperature,
        tokens_per_second=_speed(runs),
        tau=acceptance.tau,
        acceptance_per_depth=acceptance.acceptance_per_depth,
        speedup=speedup,
        ideal_speedup=ideal,
        identical=same == len(runs),
        ideal_share=None if ideal is None else speedup / ideal,
        identical_prompts=same,
        prompts=len(runs),
        tokens=sum(len(run.tokens) for run in runs),
        seconds=sum(run.seconds for run in runs),
        speedup_per_prompt=speeds,
        plain_step_seconds=plain_step,
        verify_step_seconds=verify_step,
    )


def _speed(runs: Sequence[Any]) -> float:
    return sum(len(run.tokens) for run in runs) / sum(run.seconds for run in runs)


def _step_seconds(rounds: Sequence[Round]) -> tuple[float, float]:
    """Mean seconds of a plain decoding step and of the draft's verify step."""
    plain = [clock for r in rounds if (clock := r.runs[PLAIN].clock) is not None]
    verify = [clock for r in rounds if (clock := r.verify_clock) is not None]
    return (
        sum(clock.decoding_seconds for clock in plain) / sum(clock.steps for clock in plain),
        sum(clock.seconds["verify"] for clock in verify) / sum(clock.steps for clock in verify),
    )


def find_differences(target: TargetModel, rounds: Sequence[Round]) -> list[Difference]:
    """Where greedy texts of the draft differ from plain decoding, and how near a tie the target is there."""
    found = []
    for r in rounds:
        plain = r.runs[PLAIN].tokens
        for name in r.decodings:
            tokens = r.runs[name].tokens
            if r.temperature == 0 and tokens != plain:
                found.append(_difference(target, r, plain, tokens))
    return found


def _difference(target: TargetModel, r: Round, plain: tuple[int, ...], other: tuple[int, ...]) -> Difference:
    pairs = list(zip(plain, other, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return Difference(r.number + 1, len(pairs) + 1, None)
    text = torch.tensor([[*r.request.prompt, *plain[:position]]], device=target.device)
    with torch.inference_mode():
        logits = target.logits(target.train_forward(text).hidden[0, -1]).double()
    a, b = pairs[position]
    return Difference(r.number + 1, position + 1, abs(float(logits[a] - logits[b])))
