"""Compare whole texts of an int8 target with those of plain decoding, one text at a time: every token must be equal.

python -m benchmarks.exact_texts --target smollm2 --new 256 --texts 1:8 --texts 4:8 --texts 16:16

`--texts B:N` decodes N texts in batches of B. Each tree runs greedily and at temperature 0.8. A line per setting says
how many texts differ, and the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import product

from clover.engine import Engine, Request
from clover.errors import UserError
from clover.measure.session import Session
from clover.options import ModelOptions

TREES = ("chain:4", "clover2", "eagle2:25", "lookup")
TEMPERATURES = (0.0, 0.8)


def main(given: argparse.Namespace) -> dict[str, int]:
    """Print how many texts of each setting differ, and return this by setting; UserError if a target is not exact."""
    sizes = [tuple(map(int, pair.split(":"))) for pair in given.texts]
    options = ModelOptions(target=given.target, weights="int8")
    session = Session.load(
        options, (given.draft,), given.prompts, given.new, max(count for _, count in sizes)
    )
    if not session.target.exact:
        raise UserError(f"{session.target_name} is not bit-exact: {session.target.inexact}")
    found: dict[str, int] = {}
    for temperature in TEMPERATURES:
        requests = session.requests(temperature)
        plain = [write(session.engine("plain"), [request], 1)[0] for request in requests]
        for tree, (batch, count) in product(given.trees, sizes):
            begun, texts = time.perf_counter(), write(session.engine(tree), requests[:count], batch)
            differ = sum(one != other for one, other in zip(texts, plain, strict=False))
            name = f"{tree}, T {temperature:g}, batch {batch}"
            found[name] = differ
            tokens, seconds = sum(map(len, texts)), time.perf_counter() - begun
            print(f"{name}: {differ} of {len(texts)} texts differ", end=" ")
            print(f"({tokens:,} tokens, {seconds:.0f} s)", flush=True)
    print(json.dumps({"target": session.target_name, "new_tokens": given.new, "differ": found}))
    return found


def write(engine: Engine, requests: Sequence[Request], together: int) -> list[tuple[int, ...]]:
    """Return the new tokens of each request, at most `together` at once."""
    events = engine.run(requests, max_sequences=together)
    done = {event.index: event.generation for event in events if event.generation is not None}
    return [done[index].tokens for index in range(len(requests))]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default=None, help="the embedded one when left out")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--prompts", nargs="*", default=None)
    parser.add_argument("--new", type=int, default=256, help="new tokens of each text")
    parser.add_argument("--texts", action="append", help="B:N, N texts in batches of B")
    parser.add_argument("--trees", nargs="*", default=list(TREES))
    given = parser.parse_args(words)
    given.texts = given.texts or ["1:4", "4:8", "16:16"]
    return given


if __name__ == "__main__":
    try:
        sys.exit(any(main(arguments()).values()))
    except UserError as error:
        sys.exit(f"exact_texts: {error}")
