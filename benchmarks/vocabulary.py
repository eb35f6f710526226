"""What a smaller draft vocabulary costs in acceptance and saves in time.

    python benchmarks/vocabulary.py --texts written.jsonl [--target DIR --draft DIR] [--sizes 256 512 …] [--json FILE]

The texts, those that `clover train --regenerate` leaves beside its output, say which tokens are frequent. Each size
runs over the development prompts of the embedded target, in turn with all others, at temperature 0, and gives one JSON
line: `size` (tokens the draft proposes from), `coverage` (their share of the texts), `tau`, `draft_milliseconds` and
`step_milliseconds` (medians over the prompts of the mean of a step) and `speedup` (against plain decoding).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clover import assets
from clover.api import load
from clover.data import token_counts
from clover.data.regenerated import read_regenerated
from clover.drafts import load_draft
from clover.drafts.vocabulary import frequent_tokens
from clover.engine import Engine, PhaseClock, Request
from clover.metrics import Acceptance

SIZES = (256, 512, 1024, 2048, 4096)


@dataclass
class Row:
    """One size, or plain decoding (0), as far as it was measured; times per prompt, in seconds."""

    size: int
    engine: Engine
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft: list[float] = field(default_factory=list)  # of a step
    step: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    model = load(options.target, options.draft, dtype=options.dtype)
    counts = token_counts(read_regenerated(options.texts), model.target.vocab_size)
    rows = [Row(0, Engine(model.target))]
    for size in options.sizes:
        draft = load_draft(options.draft or assets.DRAFT, model.target)
        if size < model.target.vocab_size:
            draft.reduce_vocabulary(frequent_tokens(counts, size))
        rows.append(Row(size, Engine(model.target, draft)))
    prompts = json.loads(options.prompts.read_text())[options.key][: options.count]
    requests = [Request(tuple(model.encode(prompt)), options.max_new_tokens) for prompt in prompts]
    _measure(rows, requests, options.repeats)
    lines = [_line(row, rows[0], counts) for row in rows[1:]]
    for line in lines:
        print(json.dumps(line))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


def _measure(rows: list[Row], requests: list[Request], repeats: int) -> None:
    for row in rows:
        list(row.engine.run(requests[:1]))
    for number, request in enumerate(requests * repeats):
        turn, expected = number % len(rows), None
        for row in rows[turn:] + rows[:turn]:
            clock, started = PhaseClock(), time.perf_counter()
            *_, last = row.engine.run([request], clock)
            row.total.append(time.perf_counter() - started)
            row.draft.append(clock.seconds["draft"] / clock.steps)
            row.step.append(row.total[-1] / clock.steps)
            assert last.generation is not None
            if number < len(requests):
                row.acceptance += last.generation.acceptance
            expected = expected or last.generation.tokens
            assert last.generation.tokens == expected, f"a vocabulary of {row.size} changed the output"


def _line(row: Row, plain: Row, counts: torch.Tensor) -> dict[str, Any]:
    known = counts[frequent_tokens(counts, row.size)].sum() / counts.sum()
    ratios = [mine / own for mine, own in zip(plain.total, row.total, strict=True)]
    return {
        "size": row.size,
        "coverage": round(float(known), 5),
        "tau": round(row.acceptance.tau, 4),
        "draft_milliseconds": round(1e3 * statistics.median(row.draft), 3),
        "step_milliseconds": round(1e3 * statistics.median(row.step), 3),
        "speedup": round(statistics.median(ratios), 3),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=Path, default=assets.HELD_OUT_PROMPTS)
    parser.add_argument("--key", default="development")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
