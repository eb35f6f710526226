"""What is in the package: a small target with a draft of each of Clover's systems, and drafts for a real chat model.

The embedded default was made by `python -m experiments.recipes embedded` in a clone; how the drafts for SmolLM2
were made, their cards say. `clover.packaged` finds them as it finds those of other packages.
"""

from pathlib import Path

_DEFAULT, SMOLLM2 = Path(__file__).parent / "default", Path(__file__).parent / "smollm2"
TARGET = _DEFAULT / "target"
DRAFTS = {system: _DEFAULT / system for system in ("clover1", "clover2", "recall")}
DRAFT = DRAFTS["recall"]
HELD_OUT_PROMPTS = _DEFAULT / "held_out_prompts.json"
MT_BENCH = SMOLLM2 / "mt_bench.jsonl"  # eight of its questions
