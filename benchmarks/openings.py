"""Write the same questions with other openings: does a draft depend on the prompt's first tokens?

    python benchmarks/openings.py mt_bench.jsonl DIR
    clover evaluate DIR/system.jsonl --target T --draft D --temperature 0 --tree chain:3 --max-new-tokens 64

A draft of a chat model learns from texts that all begin with its default system prompt. `default.jsonl` has chats as
the chat template opens them, `system.jsonl` the same with one of four system prompts in turn, `raw.jsonl` the questions
as plain text, without a template. The questions are spaced evenly over the file, which is read as `clover evaluate`
reads it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from clover.data.tasks import read_tasks, spread

SYSTEM_PROMPTS = (
    "You are a pirate. Answer in one short paragraph.",
    "You are an expert lawyer who answers formally.",
    "Respond as a teacher of ten-year-old children would.",
    "You work for the support desk of Acme Ltd. Be polite and brief.",
)


def main() -> None:
    """Write the three files."""
    options = _options()
    questions = [task.messages[0]["content"] for task in spread(read_tasks([options.file]), options.prompts)]
    asked: list[list[dict[str, str]]] = [[{"role": "user", "content": words}] for words in questions]
    told = [
        [{"role": "system", "content": SYSTEM_PROMPTS[i % len(SYSTEM_PROMPTS)]}, *chat]
        for i, chat in enumerate(asked)
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    _write(options.output / "default.jsonl", [{"messages": chat} for chat in asked])
    _write(options.output / "system.jsonl", [{"messages": chat} for chat in told])
    _write(options.output / "raw.jsonl", [{"prompt": words} for words in questions])


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompts", type=int, default=16)
    return parser.parse_args()


if __name__ == "__main__":
    main()
