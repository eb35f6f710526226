"""What a draft is worth on vLLM: vLLM with each draft beside vLLM without one, batch 1, in one process, in turn.

    .venv-vllm/bin/python benchmarks/vllm_speed.py [--drafted 5] [--prompts 8] [--target T --draft D] [--compiled]

Needs the environment of `make test-vllm`. Printed per draft: the median over prompts of tokens/s divided by vLLM's own
on that prompt, τ in vLLM, τ of this project's engine with the same chain on the same prompts and without rounded
weights, and their ratio; the last line is JSON. All texts must be equal. The first prompt warms up and is left out.

One thread unless OMP_NUM_THREADS says otherwise: where a single query is split over threads, those of vLLM's attention
spin until all have come, which flatters drafts on a machine that other processes use too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import vllm
from vllm import LLM, SamplingParams

from clover import assets
from clover.api import Clover
from clover.drafting import parse_tree
from clover.drafts import RecallDraft, load_draft
from clover.engine import Engine
from clover.integrations.export import export
from clover.measure.report.provenance import machine, revision, versions
from clover.measure.session import choose_prompts
from clover.metrics import Acceptance
from clover.packaged import draft_place
from clover.target import TargetModel

PLAIN = "plain"


@dataclass(frozen=True)
class Written:
    """One text of vLLM: its tokens, its seconds, and the decoding steps after the first token."""

    tokens: tuple[int, ...]
    seconds: float
    steps: int


def main() -> None:
    options = _options()
    with TemporaryDirectory() as folder:
        engines = {PLAIN: _engine(options)}
        for draft in options.draft:
            place = Path(folder) / Path(draft).name
            export("vllm", draft, place)
            engines[draft] = _engine(options, place)
        target = TargetModel.load(options.target, options.dtype)
        own = {draft: _own(options, draft, target) for draft in options.draft}
        fit, _ = choose_prompts((), target, options.new, options.prompts + 1)
        prompts = [list(one.tokens) for one in fit]
        rounds = [
            {name: write(llm, prompt, options.new) for name, llm in engines.items()} for prompt in prompts
        ][1:]
        assert all(len({one.tokens for one in found.values()}) == 1 for found in rounds), "a text differs"
        results = {
            draft: _result(rounds, draft, own[draft], prompts[1:], options.new) for draft in options.draft
        }
    for draft, found in results.items():
        print(draft, "  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    card = {
        "machine": machine(torch.device("cpu")),
        "revision": revision(),
        "versions": versions() | {"vllm": vllm.__version__},
        "target": Path(options.target).name,
        "drafted": options.drafted,
        "compiled": options.compiled,
    }
    print(json.dumps(card | {"results": results}))


def write(llm: LLM, prompt: list[int], new: int) -> Written:
    """Continue a prompt greedily, step by step."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    engine, tokens, steps = llm.llm_engine, (), 0
    start = time.perf_counter()
    engine.add_request(str(time.perf_counter_ns()), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            steps += bool(tokens)
            tokens = tuple(output.outputs[0].token_ids)
    return Written(tokens, time.perf_counter() - start, steps)


def _result(
    rounds: list[dict[str, Written]], draft: str, own: Clover, prompts: list[list[int]], new: int
) -> dict[str, float]:
    speedup = median(found[PLAIN].seconds / found[draft].seconds for found in rounds)
    speed = {name: sum(f[name].seconds for f in rounds) / len(rounds) / new for name in (PLAIN, draft)}
    there = sum(len(f[draft].tokens) - 1 for f in rounds) / sum(f[draft].steps for f in rounds)
    made = own.generate(prompts, max_new_tokens=new, ignore_eos=True, batch_size=1)
    # Our first step drafts, too: nothing is left out.
    here = sum((one.acceptance for one in made), Acceptance()).tau
    return {
        "speedup": speedup,
        "plain_tokens_per_second": 1 / speed[PLAIN],
        "tokens_per_second": 1 / speed[draft],
        "tau_vllm": there,
        "tau_own": here,
        "tau_ratio": there / here,
    }


def _engine(options: argparse.Namespace, draft: Path | None = None) -> LLM:
    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": options.drafted}
    settings: dict[str, Any] = {"speculative_config": speculative if draft else None}
    return LLM(
        str(options.target),
        dtype=options.dtype,
        max_model_len=1024,
        kv_cache_memory_bytes=256 << 20,
        max_num_seqs=4,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=not options.compiled,
        **settings,
    )


def _own(options: argparse.Namespace, draft: str, target: TargetModel) -> Clover:
    loaded = load_draft(draft_place(draft), target)
    if isinstance(loaded, RecallDraft):
        loaded.copy_nothing()  # vLLM has no place for it
    engine = Engine(target, loaded, parse_tree(f"chain:{options.drafted}"))
    engine.draft = loaded.for_inference(full_precision=True)
    return Clover(engine)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default=str(assets.TARGET))
    parser.add_argument(
        "--draft", action="append", help="may be given several times. Default: clover2 and recall"
    )
    parser.add_argument("--drafted", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the target")
    options = parser.parse_args()
    options.draft = options.draft or ["clover2", "recall"]
    return options


if __name__ == "__main__":
    main()
