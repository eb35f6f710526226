"""What steps of copies are worth: `--method auto` with and without them, beside plain decoding.

    python benchmarks/copying.py [--batch-size 1 --batch-size 4] [--temperature 0 --temperature 0.8] [--json FILE]

All three decode the same development prompts in turn. Both ways of auto begin with what `tuning.json` says, if there is
one, and keep what they learn. Printed are medians of the rounds' speed-ups over plain decoding, prefill included, and
of the way with copies the steps that copied alone, of all, and the target's pass, of the time of a step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from clover import assets
from clover.api import find_tuning
from clover.bench.metrics import step_seconds
from clover.drafting import Copier, Drafter, Policy, PrefillOutcome, Running, StepOutcome, make_policy
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine
from clover.evaluate import choose_prompts
from clover.interleaved import decode, interleave, make_batches, speedups, texts_of
from clover.target import TargetModel

PLAIN, WITHOUT, WITH = "plain", "without", "with"


class Counting(Policy):
    """A policy whose steps are counted, and those that copied."""

    def __init__(self, policy: Policy):
        self.policy, self.steps, self.copied = policy, 0, 0
        self.max_nodes, self.max_depth = policy.max_nodes, policy.max_depth

    def choose(self, running: Running) -> Drafter | Copier | None:
        return self.policy.choose(running)

    def record(self, outcome: StepOutcome) -> None:
        self.steps += 1
        self.copied += isinstance(outcome.drafter, Copier)
        self.policy.record(outcome)

    def expects_draft(self, coming: Running) -> bool:
        return self.policy.expects_draft(coming)

    def record_prefill(self, outcome: PrefillOutcome) -> None:
        self.policy.record_prefill(outcome)


def main() -> None:
    options = _options()
    target = TargetModel.load(options.target, dtype=options.dtype)
    draft = load_draft(options.draft, target)
    prompts = [prompt.tokens for prompt in choose_prompts((), target, options.count)]
    lines = []
    for temperature in options.temperature or [0.0]:
        for size in options.batch_size or [1]:
            line = _measure(target, draft, prompts, size, temperature, options)
            lines.append(line)
            print("  ".join(f"{key} {value:g}" for key, value in line.items()), flush=True)
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _measure(
    target: TargetModel,
    draft: DraftModel,
    prompts: Sequence[tuple[int, ...]],
    size: int,
    temperature: float,
    options: argparse.Namespace,
) -> dict[str, float]:
    tuning = find_tuning(options.draft, target)
    counting = Counting(make_policy(draft, tuning))
    policies = {PLAIN: None, WITHOUT: make_policy(draft, tuning, copies=False), WITH: counting}
    ways = {
        name: partial(decode, Engine(target, None if policy is None else draft, policy=policy))
        for name, policy in policies.items()
    }
    batches = make_batches(prompts, size, temperature, options.max_new_tokens, target.context_length)
    rounds = interleave(ways, batches, options.rounds)
    for found in zip(*rounds.values(), strict=True):
        assert texts_of(found[0]) == texts_of(found[1]) == texts_of(found[2]), "a text differs"
    steps = step_seconds([run for found in rounds[WITH] for run in found])
    return {
        "batch_size": size,
        "temperature": temperature,
        **{name: round(median(speedups(rounds[name], rounds[PLAIN])), 3) for name in (WITHOUT, WITH)},
        "copied": round(counting.copied / counting.steps, 3),
        "verify_share": round(steps["verify"] / steps["total"], 3),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument("--draft", default=str(assets.DRAFT))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--count", type=int, default=12, help="development prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
