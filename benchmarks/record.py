"""Record what `replay.py` replays of a pair: how far chain and tree are right at every token, and what steps take.

    python benchmarks/record.py --name recall [--target DIR] [--draft DIR] [--costs FILE]

The target writes texts after the embedded development prompts, or those of `--prompts FILE`, greedily and at
temperature 0.8. At each new token the draft is forced along the text. Steps are timed in turn, in one thread; or
their times are those of another recording, whose draft has the same structure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch

from clover import assets
from clover.drafting import PLAIN_DRAFTER, StaticDrafter, StaticTree
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Request
from clover.measure.ranks import MAX_DEPTH, RankPath, rank_texts
from clover.measure.session import PLAIN, choose_prompts
from clover.measure.steps import time_in_turn
from clover.measure.timing import WRITTEN_TOGETHER, make_batches, time_decoding
from clover.measure.trees import accepted
from clover.target import TargetModel
from clover.tree import TreeShape

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
NEW_TOKENS, PROMPTS, TEMPERATURES, DEPTHS, STEPS = 64, 8, (0.0, 0.8), (1, 3, 6), 24
WIDE = TreeShape.from_paths(
    [(i,) for i in range(10)] + list(product(range(3), range(7)))
)  # as many as a look-up


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    target = TargetModel.load(options.target, dtype=options.dtype)
    draft = load_draft(options.draft, target)
    deepest = min(MAX_DEPTH, draft.max_depth)
    tree = draft.config.tree_shape.cut(deepest)
    files, texts = [str(file) for file in options.prompts], list[dict[str, Any]]()
    for temperature in TEMPERATURES:
        tokens = NEW_TOKENS + deepest + 1
        prompts = [prompt.tokens for prompt in choose_prompts(files, target, tokens, PROMPTS).prompts]
        batches = make_batches(prompts, 1, temperature, tokens, target.longest_run)
        requests = [replace(request, eos=()) for (request,) in batches]
        texts += record_texts(target, draft, requests, tree, deepest)
    if options.costs:
        costs = json.loads(options.costs.read_text())["costs"]
    else:
        costs = {size: step_costs(target, draft, requests, size, tree, deepest) for size in options.sizes}
    found = {"pair": options.name, "date": date.today().isoformat(), "system": draft.config.model_type}
    found |= {"dtype": str(target.dtype), "deepest": deepest, "tree": StaticTree(tree).name, "costs": costs}
    path = options.output / f"paths-{options.name}.json"
    path.write_text(json.dumps(found | {"texts": texts}, separators=(",", ":")) + "\n")
    print(f"{path}: {len(texts)} texts")


def record_texts(
    target: TargetModel, draft: DraftModel, requests: Sequence[Request], tree: TreeShape, deepest: int
) -> list[dict[str, Any]]:
    """Of each text its tokens, and how many tokens of the best chain and of the tree are right at each of them."""
    written = time_decoding(Engine(target), requests, max_sequences=WRITTEN_TOGETHER).texts
    nodes, found = frozenset(tree.paths[1:]), []
    for request, new, paths in zip(
        requests, written, rank_texts(target, draft, requests, written, deepest), strict=True
    ):
        counted = paths[:NEW_TOKENS]
        one = {"temperature": request.params.temperature, "prompt": request.prompt, "new": new}
        one |= {"chain": _digits(map(_firsts, counted)), "tree": _digits(accepted(p, nodes) for p in counted)}
        found.append(one)
    return found


def step_costs(
    target: TargetModel,
    draft: DraftModel,
    requests: Sequence[Request],
    size: int,
    tree: TreeShape,
    deepest: int,
) -> dict[str, Any]:
    """Median seconds of steps in batches of a size, and of the target's passes over so many nodes per sequence."""
    shapes = {f"chain:{depth}": TreeShape.chain(depth) for depth in (*DEPTHS, deepest)}
    drafters = {name: StaticDrafter(draft, shape) for name, shape in (shapes | {"tree": tree}).items()}
    every = {PLAIN: PLAIN_DRAFTER, **drafters, "wide": StaticDrafter(draft, WIDE)}
    count = len(requests)
    batches = [[requests[n % count] for n in range(at, at + size)] for at in range(0, count, size)]
    steps = time_in_turn(target, draft, every, batches, lambda steps: steps >= STEPS).costs
    costs: dict[str, Any] = {name: round(one.seconds, 6) for name, one in steps.items() if name != "wide"}
    passes = {one.nodes: round(one.verify_seconds, 6) for one in steps.values()}
    return costs | {"verify": dict(sorted(passes.items()))}


def _firsts(path: RankPath) -> int:
    """How many of the draft's first choices are right, one after the other."""
    return next((depth for depth, rank in enumerate(path) if rank), len(path))


def _digits(depths: Any) -> str:
    return "".join(DIGITS[depth] for depth in depths)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument("--draft", default=str(assets.DRAFT))
    parser.add_argument("--dtype")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/results/replay"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
