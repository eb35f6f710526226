"""Is the speed-up that `clover cost` predicts from random weights the one that a trained draft then has?

Steps are measured with a draft of the same structure and random weights; then the trained draft and plain decoding
write the same texts in turn, whole, as in `clover bench`. At the τ that comes out, prediction and measurement are
compared, one JSON line per batch size and tree:

    python benchmarks/predicted.py --batch-size 1 --batch-size 4
    python benchmarks/predicted.py --target DIR --draft DIR --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from clover import assets
from clover.drafting import StaticTree, parse_tree
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine
from clover.measure.comparison import measure_methods
from clover.measure.methods import Method
from clover.measure.session import choose_prompts
from clover.measure.step_costs import measure_steps
from clover.measure.timing import make_batches
from clover.target import TargetModel
from clover.tree import TreeShape


def main() -> None:
    options = _options()
    if options.cpu_time:
        time.perf_counter = time.process_time
    target = TargetModel.load(options.target or str(assets.TARGET), dtype=options.dtype)
    draft = load_draft(options.draft or str(assets.DRAFT), target)
    shapes = [_static(name) for name in options.tree or ("chain:2", "chain:4", "chain:8")]
    for size in options.batch_size or (1,):
        chosen = choose_prompts(options.prompts, target, options.max_new_tokens, size)
        prompts = [prompt.tokens for prompt in chosen.prompts]
        batch = make_batches(prompts, size, 0.0, options.max_new_tokens, target.longest_run)[0]
        started = time.monotonic()

        def enough(steps: int, started: float = started) -> bool:
            return steps >= (options.steps if time.monotonic() - started < options.seconds else 12)

        costs = measure_steps(target, _untrained(draft, target), shapes, batch, enough)
        methods = [
            Method(one.drafted.step.tree, Engine(target, draft, one.drafted.step.tree)) for one in costs
        ]
        plain, *others = measure_methods([Method("plain", Engine(target)), *methods], [batch], options.rounds)
        for cost, one in zip(costs, others, strict=True):
            tau, tree = one.tau.value, one.method.name
            came, told = one.speedup(plain).value, cost.speedup(tau)
            found = {"batch_size": size, "tree": tree, "tau": tau, "predicted": told, "measured": came}
            print(json.dumps(found | {"ratio": told / came, "steps": cost.drafted.step.steps}), flush=True)


def _untrained(draft: DraftModel, target: TargetModel) -> DraftModel:
    """Return a draft of the same structure and sizes, with its starting values."""
    new: Any = type(draft)(draft.config)
    new = new.to(device=target.device, dtype=target.dtype)
    if draft.d2t is not None:
        new.d2t = draft.d2t.clone()
    new.start_from(target)
    return new.bind(target).eval()


def _static(name: str) -> TreeShape:
    tree = parse_tree(name)
    assert isinstance(tree, StaticTree), f"{name} is no static tree"
    return tree.shape


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", nargs="*")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype")
    parser.add_argument("--tree", action="append")
    parser.add_argument("--batch-size", type=int, action="append")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count processor time: on a busy machine, one thread"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
