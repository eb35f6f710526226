"""Acceptance length on a model that was not made here: train a Clover-2 draft on text the target writes, measure τ.

    python benchmarks/stories.py --target stories260K --train train.jsonl --held-out heldout.jsonl --minutes 10

Writing the text and training together take `--minutes`. Prompts are the first 32 tokens of held-out stories; τ is that
of the 25-node tree. Prints one JSON line and, with --json, appends it to a file.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers

import clover
from clover.api import Clover
from clover.data import FileTexts
from clover.drafts import RecallDraft
from clover.engine import Engine
from clover.losses import LossConfig
from clover.metrics import Acceptance
from clover.regenerate import RegenerateConfig, regenerate
from clover.target import TargetModel
from clover.train import TrainConfig, train

WRITING_SHARE, PROMPT_TOKENS = 0.25, 32


def main() -> None:
    """Write, train, measure, print."""
    options = _options()
    torch.manual_seed(options.seed)
    target = TargetModel.load(options.target)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        draft = _trained(target, options, Path(work), started)
    minutes = (time.monotonic() - started) / 60
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {
            "clover": clover.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "minutes": round(minutes, 2),
        "loss": asdict(_loss(options)),
        "hidden_state": options.hidden_state,
        "lr": options.lr,
        **_measured(target, draft, options),
    }
    line = json.dumps(result)
    print(line)
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _trained(target: TargetModel, options: argparse.Namespace, work: Path, started: float) -> RecallDraft:
    stories = list(FileTexts([options.train], target.tokenizer, target.eos_token_ids))
    config = RegenerateConfig(
        max_length=256,
        prompt_tokens=PROMPT_TOKENS,
        temperatures=(0.0, 0.7),
        batch_size=128,
        max_minutes=options.minutes * WRITING_SHARE,
    )
    written = regenerate(target, stories, config, work / "written.jsonl")
    print(f"{len(written)} texts after {time.monotonic() - started:.0f} s", file=sys.stderr)
    draft = RecallDraft.from_target(target, hidden_state=options.hidden_state)
    settings = TrainConfig(
        output=str(work / "draft"),
        max_length=256,
        batch_tokens=options.batch_tokens,
        max_minutes=options.minutes - (time.monotonic() - started) / 60,
        lr=options.lr,
        dtype="fp32",
        validation_share=0.0,
        loss=_loss(options),
    )
    train(settings, target, written, draft)
    return draft.eval()


def _loss(options: argparse.Namespace) -> LossConfig:
    default, weight = RecallDraft.default_loss, options.regression_weight
    return default if weight is None else replace(default, regression_weight=weight)


def _measured(target: TargetModel, draft: RecallDraft, options: argparse.Namespace) -> dict[str, object]:
    model = Clover(Engine(target, draft))
    with options.held_out.open(encoding="utf-8") as file:
        stories = [json.loads(line)["text"] for line in file]
    prompts = [model.encode(story)[:PROMPT_TOKENS] for story in stories[: options.prompts]]
    found = {}
    for name, temperature in (("tau", 0.0), ("tau_sampled", 1.0)):
        results = model.generate(prompts, max_new_tokens=128, temperature=temperature, batch_size=20)
        total = sum((result.acceptance for result in results), Acceptance())
        found |= {name: round(total.tau, 3)}
        if not temperature:
            found |= {"acceptance_per_depth": [round(rate, 3) for rate in total.acceptance_per_depth]}
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--regression-weight", type=float)
    parser.add_argument("--hidden-state", default="post_norm", choices=("post_norm", "pre_norm"))
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
