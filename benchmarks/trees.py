"""Which static tree is fastest for a pair on this machine: find the best tree of each size, then time them interleaved.

    python benchmarks/trees.py [--target DIR --draft DIR] [--prompts FILE] [--json FILE]

A wide tree is run once on development prompts to count how often each node is on the accepted path. The best tree of n
nodes takes the n most frequent ones (a child is never more frequent than its parent). Candidates of several sizes, the
25-node tree and chains are then timed in turn, prompt by prompt, against plain decoding, at temperature 0.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from clover import assets
from clover.api import Clover, load
from clover.engine import Engine, Request
from clover.metrics import Acceptance
from clover.recipe.tree import likely_paths
from clover.tree import CLOVER2_TREE, TreeShape

SIZES = (4, 6, 8, 10, 12, 16, 25)
CHAINS = (3, 5)


def main() -> None:
    """Find the trees, time them, print a table."""
    options = _options()
    model = load(options.target, options.draft, dtype=options.dtype)
    prompts = [tuple(model.encode(p)) for p in json.loads(options.prompts.read_text())[options.key]][
        : options.count
    ]
    requests = [Request(prompt, options.max_new_tokens) for prompt in prompts]
    best = likely_paths(model.engine, requests)
    shapes = {f"best {size}": TreeShape.from_paths(best[:size]) for size in SIZES}
    shapes |= {f"chain {length}": TreeShape.chain(length) for length in CHAINS} | {"clover2": CLOVER2_TREE}
    rows = _time(model, requests, shapes)
    for row in sorted(rows, key=lambda r: -r["speedup"]):
        print(f"{row['tree']:10s} nodes {row['nodes']:3d}  τ {row['tau']:.2f}  speed-up {row['speedup']:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "best_paths": best[: max(SIZES)]}, indent=1) + "\n")


def _time(model: Clover, requests: list[Request], shapes: dict[str, TreeShape]) -> list[dict[str, Any]]:
    engines = {"plain": Engine(model.target)}
    engines |= {name: Engine(model.target, model.engine.draft, shape) for name, shape in shapes.items()}
    seconds = dict.fromkeys(engines, 0.0)
    acceptance = {name: Acceptance() for name in engines}
    for engine in engines.values():
        list(engine.run(requests[:1]))
    for number, request in enumerate(requests):
        order = list(engines)
        order = order[number % len(order) :] + order[: number % len(order)]
        expected = None
        for name in order:
            started = time.perf_counter()
            *_, last = engines[name].run([request])
            seconds[name] += time.perf_counter() - started
            assert last.generation is not None
            acceptance[name] += last.generation.acceptance
            expected = expected or last.generation.tokens
            assert last.generation.tokens == expected, "a tree changed the output"
    return [
        {
            "tree": name,
            "nodes": shape.budget,
            "tau": round(acceptance[name].tau, 3),
            "speedup": round(seconds["plain"] / seconds[name], 3),
        }
        for name, shape in shapes.items()
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=Path, default=assets.HELD_OUT_PROMPTS)
    parser.add_argument("--key", default="development")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
