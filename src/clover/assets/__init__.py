"""The embedded default: a small real target and its Clover-2 draft, made by `clover recipe`."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
TARGET = _HERE / "default" / "target"
DRAFT = _HERE / "default" / "draft"
HELD_OUT_PROMPTS = _HERE / "default" / "held_out_prompts.json"
