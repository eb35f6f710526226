"""How do memory and the time of a step grow with the length of the text?

    python benchmarks/lengths.py --length 1000 --length 16000
    python benchmarks/lengths.py --target DIR --draft DIR --length 8000

Without a target, a random Llama with a context of 32,768 tokens and a random Recall draft are made: the draft is
hardly ever right, so look at the time of a step, not of a token. One JSON line per length, rising, and tree: seconds of
the prefill, milliseconds of a step, and the largest memory of this process so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from clover.drafts import DraftModel, RecallDraft, load_draft
from clover.engine import Engine, Request
from clover.measure.timing import time_decoding
from clover.target import TargetModel

CONTEXT, VOCAB = 32_768, 4096


def main() -> None:
    options = _options()
    if options.cpu_time:
        time.perf_counter = time.process_time
    target, draft = pair(options.target, options.draft)
    for length in sorted(options.length):
        prompt = tuple(
            torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(0)).tolist()
        )
        for tree in ("plain", *options.tree):
            engine = Engine(target, None if tree == "plain" else draft, tree)
            run = time_decoding(engine, [Request(prompt, options.max_new_tokens, eos=())], synchronize=True)
            decoding, steps = run.clock.decoding_seconds, run.acceptance.steps
            found = {"prompt": length, "new": run.tokens, "tree": tree, "tau": round(run.acceptance.tau, 3)}
            found |= {
                "prefill_s": round(run.seconds - decoding, 3),
                "step_ms": round(1e3 * decoding / steps, 3),
            }
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(json.dumps(found | {"peak_mib": memory}), flush=True)


def pair(target: str | None, draft: str | None) -> tuple[TargetModel, DraftModel]:
    """Return the named models, or random ones."""
    if target is not None:
        assert draft is not None, "give the target's draft"
        loaded = TargetModel.load(target)
        return loaded, load_draft(draft, loaded)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "vocab_size": VOCAB,
    }
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=CONTEXT)
    made = TargetModel(LlamaForCausalLM(config).eval())
    return made, RecallDraft.from_target(made).eval()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--tree", action="append", default=[])
    parser.add_argument("--length", type=int, action="append", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count processor time: on a busy machine, one thread"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
