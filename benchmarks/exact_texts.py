"""Compare whole texts of an exact target with those of plain decoding, one text at a time: every token must be equal.

python -m benchmarks.exact_texts --target smollm2 --new 256 --rounds 4 --minutes 60

A round has 16 prompts of its own: each tree decodes them 16 at once, the first four of them together, and the first two
one by one, at each of `--temperatures`. Plain decoding decodes `--alone` of them one by one, which is what all
other texts are compared with, and the rest 16 at once. `--first` leaves rounds out that an earlier run has done. The
sums are printed as one JSON line, also when Ctrl-C ends the run; `--json` keeps them in a file on the way.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from clover.engine import Engine, Request
from clover.errors import UserError
from clover.files import write_text
from clover.measure.report.provenance import Provenance
from clover.measure.session import PLAIN, Session
from clover.metrics import Acceptance
from clover.options import ModelOptions

TREES = ("chain:4", "clover2", "eagle2:25", "lookup")
ROUND = 16  # prompts
SIZES = {1: 2, 4: 4, ROUND: ROUND}  # how many of them are decoded in batches of this size


@dataclass
class Cell:
    """What was compared of one tree, temperature and batch size; `seconds` are of a machine that does other things."""

    texts: int = 0
    tokens: int = 0
    steps: int = 0
    differ: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Written:
    """The new tokens of each request, and the steps and seconds of all of them."""

    texts: list[tuple[int, ...]]
    steps: int
    seconds: float


def main(given: argparse.Namespace, words: Sequence[str]) -> int:
    """Print the sums after each round and return how many texts differ; UserError if a target is not exact."""
    weights = None if given.dtype else "int8"
    options = ModelOptions(target=given.target, dtype=given.dtype, weights=weights, exact=weights is None)
    drafts = (given.draft,) if set(given.trees) - {PLAIN, "lookup"} else ()
    session = Session.load(options, drafts, given.prompts, given.new, given.rounds * ROUND)
    if not session.target.exact:
        raise UserError(f"{session.target_name} is not bit-exact: {session.target.inexact}")
    cells, until = defaultdict[str, Cell](Cell), time.monotonic() + 60 * given.minutes
    with suppress(KeyboardInterrupt):
        for number in range(given.first, given.rounds):
            for done in compare_round(session, given, cells, number):
                print(f"round {number}: {done}", file=sys.stderr, flush=True)
                if given.json:
                    write_text(given.json, json.dumps(result(session, given, cells, words), indent=1))
                if time.monotonic() > until:
                    raise KeyboardInterrupt
    print(json.dumps(result(session, given, cells, words)))
    return sum(cell.differ for cell in cells.values())


def compare_round(
    session: Session, given: argparse.Namespace, cells: dict[str, Cell], number: int
) -> Iterator[str]:
    """Compare the texts of one round, whose prompts are of all groups, add to the cells, and yield what is done."""
    for temperature in given.temperatures:
        requests = session.requests(temperature)[number :: given.rounds]
        alone = write(session.engine(PLAIN), requests[: given.alone], 1)
        together = write(session.engine(PLAIN), requests, ROUND)
        compare(cells[f"plain, T {temperature:g}, batch {ROUND}"], together, alone.texts, number)
        texts = [*alone.texts, *together.texts[len(alone.texts) :]]
        yield f"plain, T {temperature:g}"
        for tree, (size, count) in product(given.trees, SIZES.items()):
            name = f"{tree}, T {temperature:g}, batch {size}"
            compare(cells[name], write(session.engine(tree), requests[:count], size), texts, number)
            yield f"{name}: {cells[name].differ} of {cells[name].texts} texts differ"


def compare(cell: Cell, written: Written, expected: Sequence[tuple[int, ...]], round_: int) -> None:
    """Add what was written to a cell, and how many texts are not those that are expected."""
    cell.seconds = round(cell.seconds + written.seconds, 1)
    cell.steps += written.steps
    for number, (text, plain) in enumerate(zip(written.texts, expected, strict=False)):
        cell.texts, cell.tokens = cell.texts + 1, cell.tokens + len(text)
        if text != plain:
            cell.differ += 1
            place = next(
                (at for at, pair in enumerate(zip(text, plain, strict=False)) if len(set(pair)) > 1), -1
            )
            cell.differences.append(f"round {round_}, prompt {number}, new token {place}")


def write(engine: Engine, requests: Sequence[Request], together: int) -> Written:
    """Decode requests, at most `together` at once."""
    begun, events = time.perf_counter(), engine.run(requests, max_sequences=together)
    done = {event.index: event.generation for event in events if event.generation is not None}
    texts = [done[index].tokens for index in range(len(requests))]
    total = sum((one.acceptance for one in done.values()), Acceptance())
    return Written(texts, total.steps, time.perf_counter() - begun)


def result(
    session: Session, given: argparse.Namespace, cells: dict[str, Cell], words: Sequence[str]
) -> dict[str, Any]:
    """Return all sums, and where they come from."""
    command = shlex.join(["python", "-m", "benchmarks.exact_texts", *words])
    return {
        "target": session.target_name,
        "new_tokens": given.new,
        "alone": given.alone,
        "texts": sum(cell.texts for cell in cells.values()),
        "differ": sum(cell.differ for cell in cells.values()),
        "cells": {name: asdict(cell) for name, cell in cells.items()},
        **asdict(Provenance.here(command, session.target.device, session.target.dtype)),
    }


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default=None, help="default: the embedded target")
    parser.add_argument(
        "--dtype", default=None, help="dtype of plain weights with --exact. Default: int8 weights"
    )
    parser.add_argument("--draft", default=None)
    parser.add_argument("--prompts", nargs="*", default=None)
    parser.add_argument("--new", type=int, default=256, help="new tokens of each text")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds of 16 prompts")
    parser.add_argument("--first", type=int, default=0, help="first round")
    parser.add_argument(
        "--alone", type=int, default=ROUND, help="plain texts per round that are decoded one by one"
    )
    parser.add_argument("--json", default=None, help="file of the sums so far")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no new text after this time")
    parser.add_argument("--trees", nargs="*", default=list(TREES))
    parser.add_argument("--temperatures", nargs="*", type=float, default=[0.0, 0.8])
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        sys.exit(main(arguments(sys.argv[1:]), sys.argv[1:]) > 0)
    except UserError as error:
        sys.exit(f"exact_texts: {error}")
