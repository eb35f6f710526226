"""Compare the τ of two drafts prompt by prompt: far sharper than their own errors, which hold what the prompts do.

clover evaluate my-prompts.jsonl --target T --draft A --tree chain:3 --tree clover2 --json a.json   # and b.json
python -m benchmarks.paired a.json b.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clover.errors import UserError
from clover.measure.report.statistics import Estimate, Pair, error_of, linearized
from clover.validation import read_model


@dataclass(frozen=True)
class Setting:
    """A tree at a temperature, as `clover evaluate` writes it: of each prompt its hash, new tokens and steps.

    Older files have no hashes, still older ones no counts by prompt.
    """

    tree: str
    temperature: float
    per_prompt: list[tuple[int, int]] | None = None
    prompt_hashes: list[str] | None = None


@dataclass(frozen=True)
class Evaluation:
    """What is read of the file of `clover evaluate`."""

    settings: list[Setting]


def main(first: str, second: str) -> None:
    """Print the difference of each tree and temperature that both files have; UserError if there is none to tell."""
    ours, theirs = _settings(first), _settings(second)
    common = [setting for setting in ours if setting in theirs]
    if not common:
        raise UserError(f"{first} and {second} have no tree and temperature in common")
    known = [_check_prompts(ours[setting], theirs[setting]) for setting in common]
    if not all(known):
        print(
            "clover: warning: a file does not say which its prompts were; they are taken as the same, in order",
            file=sys.stderr,
        )
    for tree, temperature in common:
        pairs = (setting[tree, temperature].per_prompt or [] for setting in (ours, theirs))
        print(f"{tree}, T {temperature:g}: {difference(*pairs).text()}")


def difference(first: Sequence[Pair], second: Sequence[Pair]) -> Estimate:
    """Return the first ratio minus the second one, whose pairs are of the same prompts in the same order.

    >>> difference([(3.0, 1.0), (6.0, 1.0)], [(2.0, 1.0), (4.0, 1.0)])
    Estimate(value=1.5, error=0.5)
    """
    (one, ours), (other, theirs) = linearized(first), linearized(second)
    return Estimate(one - other, error_of([a - b for a, b in zip(ours, theirs, strict=True)]))


def _settings(file: str) -> dict[tuple[str, float], Setting]:
    found = read_model(Path(file), Evaluation).settings
    if any(one.per_prompt is None for one in found):
        raise UserError(f"{file} has no counts by prompt; run clover evaluate again")
    return {(one.tree, one.temperature): one for one in found}


def _check_prompts(one: Setting, other: Setting) -> bool:
    """Whether both say that they had the same prompts; UserError if the prompts cannot be the same."""
    known = one.prompt_hashes is not None and other.prompt_hashes is not None
    same = len(one.per_prompt or ()) == len(other.per_prompt or ())
    if not same or (known and one.prompt_hashes != other.prompt_hashes):
        raise UserError(
            f"{one.tree}, T {one.temperature:g}: the files have other prompts; give both the same"
        )
    return known


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first")
    parser.add_argument("second")
    try:
        main(**vars(parser.parse_args()))
    except UserError as error:
        print("clover: error:", error, file=sys.stderr)
        sys.exit(2)
