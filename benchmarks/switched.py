"""What `--tree auto` loses when the text changes in mid-run to one that the draft does not know.

    python benchmarks/switched.py [--target DIR --draft DIR] [--rounds 5] [--json FILE]

One run is a number of prompts of the known kind, decoded greedily, and then as many of random tokens, continued at
temperature 1. (A higher one is easier again: then the random numbers, which the draft shares, choose the tokens.) Plain
decoding, the draft's own tree and auto decode the same run in turn, one sequence at a time. Auto begins every run with
what `tuning.json` says, if there is one, and keeps what it learns until the run ends. Printed are medians of the
tokens per second of both halves and of the run. The loss of auto is that against the better of the two others in each
half, and over the run against a choice that is right in both halves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from clover import assets
from clover.api import Clover, load
from clover.engine import Request
from clover.sampling import SamplingParams

METHODS: tuple[str, ...] = ("plain", "draft", "auto")
HALVES: tuple[str, ...] = ("known", "unknown")
Seconds = dict[str, dict[str, list[float]]]  # of each half, of each method, of each round


def main() -> None:
    options = _options()
    plain = load(options.target, tree="plain", dtype=options.dtype)
    models = {"plain": plain, "draft": load(plain.target, options.draft, tree="own")}
    halves = {"known": _known(plain, options), "unknown": _unknown(plain, options)}
    seconds: Seconds = {half: {name: [] for name in METHODS} for half in HALVES}
    tokens = dict.fromkeys(HALVES, 0)
    for turn in range(options.rounds):
        for name in (*METHODS[turn % 3 :], *METHODS[: turn % 3]):
            if name == "auto":
                models[name] = load(plain.target, options.draft)
            for half in HALVES:
                spent, tokens[half] = _decode(models[name], halves[half])
                seconds[half][name].append(spent)
    found = _found(seconds, tokens)
    _show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _known(model: Clover, options: argparse.Namespace) -> list[Request]:
    prompts = json.loads(options.prompts.read_text())["development"][: options.count]
    return [model.request(text, max_new_tokens=options.max_new_tokens, ignore_eos=True) for text in prompts]


def _unknown(model: Clover, options: argparse.Namespace) -> list[Request]:
    random = torch.Generator().manual_seed(0)
    shape = (options.count, options.prompt_tokens)
    prompts = torch.randint(model.target.vocab_size, shape, generator=random).tolist()
    return [
        Request(
            tuple(prompt),
            options.max_new_tokens,
            SamplingParams(temperature=options.temperature, seed=seed),
            eos=(),
        )
        for seed, prompt in enumerate(prompts)
    ]


def _decode(model: Clover, requests: Sequence[Request]) -> tuple[float, int]:
    """Seconds and new tokens."""
    started = time.perf_counter()
    steps = (event for request in requests for event in model.engine.run([request]))
    tokens = sum(len(event.tokens) for event in steps)
    return time.perf_counter() - started, tokens


def _found(seconds: Seconds, tokens: dict[str, int]) -> dict[str, object]:
    median = {half: {name: statistics.median(seconds[half][name]) for name in METHODS} for half in HALVES}
    best = {half: min(median[half]["plain"], median[half]["draft"]) for half in HALVES}
    auto = {half: median[half]["auto"] for half in HALVES}
    speeds = {half: {name: tokens[half] / median[half][name] for name in METHODS} for half in HALVES}
    whole = {name: sum(tokens.values()) / sum(median[half][name] for half in HALVES) for name in METHODS}
    loss = {half: 1 - best[half] / auto[half] for half in HALVES}
    return {
        "tokens_per_second": {**speeds, "run": whole},
        "loss_of_auto": {**loss, "run": 1 - sum(best.values()) / sum(auto.values())},
        "rounds": seconds,
    }


def _show(found: dict[str, object]) -> None:
    speeds, loss = found["tokens_per_second"], found["loss_of_auto"]
    assert isinstance(speeds, dict) and isinstance(loss, dict)
    for part, methods in speeds.items():
        line = "  ".join(f"{name} {speed:7.1f}" for name, speed in methods.items())
        print(f"{part:8} {line} tokens/s   auto loses {loss[part]:.1%}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument("--draft", default=str(assets.DRAFT))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=Path, default=assets.HELD_OUT_PROMPTS)
    parser.add_argument("--count", type=int, default=8, help="prompts of each half")
    parser.add_argument("--prompt-tokens", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the unknown half")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
