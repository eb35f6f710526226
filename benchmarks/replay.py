"""How good the choices of auto are, without the noise of a machine: recorded paths, replayed at tuned costs.

    python benchmarks/replay.py [--batch-size 8 --batch-size 64] [--temperature 0 --temperature 0.8] [--error 0.1]

The target writes the development prompts on, and at every token it is noted how far the draft's best path would have
been right. From that follows what any chain accepts at any place, so closed batches of these texts can be run by the
policy of auto and by every fixed chain without a model. Steps cost what the draft's tuning says: of each batch size a
line through its chains, between sizes a line, too. With an error the policy is told other costs, each off by a factor
that is drawn once: what a tuning on a busy machine may be off by. Chains that end early are left out, and copies.

Printed per batch size and temperature: the time of auto over that of plain decoding, over that of the best of chain:8,
chain:5 and chain:3, and over that of the best chain; the best is chosen afterwards, for each draw of the prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from statistics import fmean, linear_regression

from clover import assets
from clover.api import find_tuning
from clover.drafting import Drafter, Policy, Running, StepOutcome, make_drafter
from clover.drafting.candidates import make_policy
from clover.drafting.policy import FixedPolicy
from clover.drafting.repetition import Copier
from clover.drafting.tuning import PLAIN, Choice, Tuning, on_line
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Request
from clover.evaluate import choose_prompts
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import TreeShape, parse_tree
from clover.tune.ranks import rank_texts
from clover.tune.texts import write_texts

DEEPEST = 12
SOME = (8, 5, 3)
ROUNDS, NOISE = 5, 0.06  # after one that warms up; standard deviation of a step's time, relative
Paths = Sequence[int]  # of one text: at each token how many of the draft's best path are right
Costs = Callable[[int, int], float]  # seconds of a step from rows and depth

serials = count()


def record(
    target: TargetModel, draft: DraftModel, prompts: Sequence[tuple[int, ...]], temperature: float, new: int
) -> list[Paths]:
    """Paths at each of `new` tokens of each text; texts that end before are dropped."""
    requests = [
        Request(prompt, new + DEEPEST + 1, SamplingParams(temperature=temperature, seed=seed), eos=())
        for seed, prompt in enumerate(prompts)
    ]
    texts = [text for text in write_texts(Engine(target), requests, 8) if len(text.new) > new + DEEPEST]
    ranking = rank_texts(target, draft, texts, DEEPEST)
    return [[_right(path) for path in paths] for paths in ranking.paths]


def _right(ranks: Sequence[int]) -> int:
    wrong = [place for place, rank in enumerate(ranks) if rank]
    return wrong[0] if wrong else len(ranks)


def fixed_chains(tuning: Tuning) -> Tuning:
    """The tuning with plain steps and chains of fixed length alone."""
    shapes = {c.tree: c.tree == PLAIN or isinstance(parse_tree(c.tree), TreeShape) for c in tuning.choices}
    chosen = [c for c in tuning.choices if shapes[c.tree] and c.tree.startswith(("chain:", PLAIN))]
    return replace(tuning, choices=tuple(chosen))


def depth_of(choice: Choice) -> int:
    return 0 if choice.tree == PLAIN else int(choice.tree.split(":")[1])


def costs_of(tuning: Tuning) -> Costs:
    """A line through each size's chains, and its plain step."""
    plain, lines = [], []
    for size in tuning.batch_sizes:
        choices = tuning.choices_for(size)
        plain += [(float(size), c.step_seconds) for c in choices if c.tree == PLAIN]
        drafted = [(depth_of(c), c.step_seconds) for c in choices if c.tree != PLAIN]
        lines.append((float(size), linear_regression(*zip(*drafted, strict=True))))

    def seconds(rows: int, depth: int) -> float:
        if not depth:
            return on_line(plain, rows)
        slope = on_line([(size, line.slope) for size, line in lines], rows)
        return on_line([(size, line.intercept) for size, line in lines], rows) + slope * depth

    return seconds


def told(tuning: Tuning, costs: Costs, error: float, rng: Random) -> Tuning:
    """The tuning as it would be with these costs, each off by a factor; the best first again."""
    choices = []
    for c in tuning.choices:
        seconds = costs(c.batch_size, depth_of(c)) * rng.lognormvariate(0, error)
        choices.append(replace(c, step_seconds=seconds, tokens_per_second=c.tau * c.batch_size / seconds))
    choices.sort(key=lambda c: (c.batch_size, -c.tokens_per_second))
    return replace(tuning, choices=tuple(choices))


def run(
    policy: Policy, texts: Sequence[Paths], temperature: float, costs: Costs, new: int, rng: Random
) -> float:
    """Seconds, without the noise that the policy sees, that a closed batch of these texts takes."""
    numbers, at, seconds = [next(serials) for _ in texts], [0] * len(texts), 0.0
    while live := [row for row in range(len(texts)) if at[row] < new]:
        left, rows = tuple(new - at[row] for row in live), tuple(numbers[row] for row in live)
        drafter: Drafter | Copier | None = policy.choose(
            Running(len(live), 100, temperature, left, rows=rows)
        )
        depth = 0 if drafter is None else drafter.max_depth
        step = costs(len(live), depth)
        emitted = tuple(min(texts[row][at[row]], depth) + 1 for row in live)
        measured = step * rng.lognormvariate(0, NOISE)
        policy.record(StepOutcome(len(live), 100, drafter, depth + 1, emitted, measured, 0.0, 0))
        for row, tokens in zip(live, emitted, strict=True):
            at[row] += tokens
        seconds += step
    return seconds


def main() -> None:
    options = _options()
    target = TargetModel.load(options.target)
    draft = load_draft(options.draft, target)
    tuning = find_tuning(options.draft, target)
    assert tuning is not None, "the draft has no tuning of this target, device and dtype"
    chains = fixed_chains(tuning)
    prompts = [prompt.tokens for prompt in choose_prompts((), target, 24)]
    fixed = {depth: make_drafter(draft, TreeShape.chain(depth)) for depth in range(1, DEEPEST + 1)}
    ratios: list[list[float]] = []
    for temperature in options.temperature or [0.0, 0.8]:
        texts = record(target, draft, prompts, temperature, options.max_new_tokens)
        for size in options.batch_size or chains.batch_sizes:
            found = [
                _draw(draft, chains, fixed, texts, size, temperature, options, n)
                for n in range(options.draws)
            ]
            ratios.append([fmean(values) for values in zip(*found, strict=True)])
            print(
                f"T {temperature:g}  batch {size:2}  ",
                "  ".join(f"{value:.3f}" for value in ratios[-1]),
                flush=True,
            )
    print("mean           ", "  ".join(f"{fmean(values):.3f}" for values in zip(*ratios, strict=True)))


def _draw(
    draft: DraftModel,
    chains: Tuning,
    fixed: dict[int, Drafter],
    texts: Sequence[Paths],
    size: int,
    temperature: float,
    options: argparse.Namespace,
    seed: int,
) -> tuple[float, float, float]:
    """The time of auto over that of plain steps, of the best of some chains, and of all, for one draw of prompts."""
    rng = Random(seed)
    some = rng.sample(list(texts), min(options.prompts, len(texts)))
    starts = range(0, max(len(some) - size, 0) + 1, size)
    batches = [[some[(start + row) % len(some)] for row in range(size)] for start in starts]
    costs = costs_of(chains)
    auto = make_policy(draft, told(chains, costs, options.error, rng), copies=False)

    def seconds(policy: Policy) -> float:
        return sum(run(policy, batch, temperature, costs, options.max_new_tokens, rng) for batch in batches)

    seconds(auto)
    own = fmean(seconds(auto) for _ in range(ROUNDS))
    every = {depth: seconds(FixedPolicy(drafter)) for depth, drafter in fixed.items()}
    return (
        own / seconds(FixedPolicy(None)),
        own / min(every[depth] for depth in SOME),
        own / min(every.values()),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument("--draft", default=str(assets.DRAFT))
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--prompts", type=int, default=8, help="different ones of a draw")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument(
        "--error", type=float, default=0.0, help="standard deviation of what tuned costs are off by"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
