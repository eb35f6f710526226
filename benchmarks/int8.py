"""What a draft's int8 weights are worth on a CPU: the same tree with and without them, beside plain decoding.

    python benchmarks/int8.py [--tree chain:8] [--batch-size 1 --batch-size 4] [--temperature 0 --temperature 0.8]

All three decode the same development prompts in turn. Printed are medians of the rounds: speed-ups over plain decoding,
prefill included, and their ratio; of both ways τ, milliseconds of drafting per step, and the share of the target's
pass in the time of a step.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

from clover import assets
from clover.drafting import parse_tree
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine
from clover.measure.session import choose_prompts
from clover.measure.speed import step_seconds
from clover.measure.timing import (
    Run,
    acceptance_of,
    decode,
    interleave,
    make_batches,
    speedups,
    texts_of,
)
from clover.target import TargetModel

PLAIN, EXACT, INT8 = "plain", "exact", "int8"


def main() -> None:
    options = _options()
    target = TargetModel.load(options.target)
    draft = load_draft(options.draft, target)
    fit, _ = choose_prompts((), target, options.max_new_tokens, options.count)
    prompts = [one.tokens for one in fit]
    ways = _ways(target, draft, options.tree)
    for temperature in options.temperature or [0.0]:
        for size in options.batch_size or [1]:
            batches = make_batches(prompts, size, temperature, options.max_new_tokens, target.longest_run)
            rounds = interleave(ways, batches, options.rounds)
            for found in zip(*rounds.values(), strict=True):
                assert texts_of(found[0]) == texts_of(found[1]) == texts_of(found[2]), "a text differs"
            print(f"batch {size}  T {temperature:g}  ", "  ".join(_findings(rounds)), flush=True)


def _ways(target: TargetModel, draft: DraftModel, tree: str) -> dict[str, partial[Run]]:
    engines = {name: Engine(target, draft, parse_tree(tree)) for name in (EXACT, INT8)}
    engines[EXACT].draft = draft.for_inference(exact=True)
    return {name: partial(decode, engine) for name, engine in {PLAIN: Engine(target), **engines}.items()}


def _findings(rounds: dict[str, list[list[Run]]]) -> list[str]:
    ratios = [median(speedups(rounds[name], rounds[PLAIN])) for name in (EXACT, INT8)]
    ratio = median(speedups(rounds[INT8], rounds[EXACT]))
    lines = [f"exact {ratios[0]:.2f}", f"int8 {ratios[1]:.2f}", f"ratio {ratio:.3f}"]
    for name in (EXACT, INT8):
        runs = [run for found in rounds[name] for run in found]
        times, tau = step_seconds(runs), acceptance_of(runs).tau
        lines.append(
            f"{name}: τ {tau:.2f}, drafting {1000 * times['draft']:.2f} ms, pass {times['verify'] / times['total']:.2f}"
        )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument("--draft", default=str(assets.DRAFT))
    parser.add_argument("--tree", default="chain:8")
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--count", type=int, default=12, help="development prompts")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
