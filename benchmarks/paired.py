"""Compare the τ of two drafts prompt by prompt: far sharper than their own errors, which hold what the prompts do.

clover evaluate my-prompts.jsonl --target T --draft A --tree chain:3 --tree clover2 --json a.json   # and b.json
python benchmarks/paired.py a.json b.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from clover.report.statistics import Ratio


def main(first: str, second: str) -> None:
    """Print the difference of each tree and temperature that both files have."""
    ours, theirs = _settings(first), _settings(second)
    for (tree, temperature), one in ours.items():
        other = theirs.get((tree, temperature))
        if other is None:
            continue
        if len(one) != len(other):
            sys.exit(f"{tree}, T {temperature:g}: {len(one)} prompts and {len(other)}; give both the same")
        print(f"{tree}, T {temperature:g}: {(Ratio.of([one]) - Ratio.of([other])).estimate.text()}")


def _settings(file: str) -> dict[tuple[str, float], list[tuple[int, int]]]:
    """New tokens and steps of each prompt, by tree and temperature."""
    found: list[dict[str, Any]] = json.loads(Path(file).read_text(encoding="utf-8"))["settings"]
    return {(one["tree"], one["temperature"]): list(map(tuple, one["per_prompt"])) for one in found}


if __name__ == "__main__":
    main(*sys.argv[1:])
