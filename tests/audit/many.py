"""Many audits of engines without a defect: none may find one.

python -m tests.audit.many --count 200 --stories DIR    # a small Llama in Hugging Face form as the fourth target
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path
from random import Random

import torch

from clover import api, assets
from clover.audit.model import ModelSource
from clover.audit.run import Audit
from clover.audit.texts import EngineSource, make_modes, mixed_params
from clover.data.tasks import encode_task, read_tasks
from clover.target import TargetModel
from tests.audit.conftest import NEW_TOKENS, audit_of, weak_attention

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EVERY = 16  # of so many audits of one dtype, one is of the embedded pair


def embedded_audit(dtype: torch.dtype, number: int) -> Audit:
    target = TargetModel.load(assets.TARGET, dtype)
    tasks = Random(number).sample(read_tasks([assets.HELD_OUT_PROMPTS]), 4)
    chosen = [encode_task(task, target.require_tokenizer()).tokens[-24:] for task in tasks]
    names = ("plain", "auto", "own")
    methods = {name: EngineSource(api.make_engine(target, assets.DRAFT, name)) for name in names}
    modes = make_modes(chosen, NEW_TOKENS, mixed_params(0.8, target.vocab_size), 3)
    return Audit(ModelSource(target), methods, modes, (3,))


def stories_audit(place: Path, dtype: torch.dtype, number: int) -> Audit:
    target = TargetModel.load(place, dtype)
    return audit_of(target, ("clover2", "chain:4"), seed=number)


def audit(number: int, stories: Path | None) -> tuple[str, Audit]:
    """Audit number so, and what it is of: dtypes in turn, then targets."""
    dtype, turn = DTYPES[number % len(DTYPES)], number // len(DTYPES)
    if turn % EVERY == EVERY - 1:
        return f"embedded, {dtype}", embedded_audit(dtype, number)
    if stories is not None and turn % 3 == 2:
        return f"stories260K, {dtype}", stories_audit(stories, dtype, number)
    family = ("llama", "gpt2", "gemma3_text", "phi3")[turn % (2 if stories else 4)]
    return f"{family}, {dtype}", audit_of(weak_attention(dtype, family, seed=number), seed=number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stories", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counted: dict[str, list[int]] = {}
    for number in range(options.first, options.first + options.count):
        started = time.process_time()
        name, one = audit(number, options.stories)
        found = one.run()
        row = counted.setdefault(name, [0, 0, 0, 0])
        for at, value in enumerate(
            (1, sum(method.tokens for method in found.methods), found.near_ties, found.defects)
        ):
            row[at] += value
        worst = max(method.worst for method in found.methods) / found.rounding.most
        print(
            f"{number} {name}: {found.near_ties} near-ties, {found.defects} defects, worst {worst:.2f} of the limit, "
            f"p {found.p_value}, {time.process_time() - started:.1f} s", flush=True
        )  # fmt: skip
        for bad in [*islice((d for d in found.mismatches if d.defect), 3), *found.problems]:
            print("   ", bad, flush=True)
    for name, row in sorted(counted.items()):
        print(
            name,
            *(f"{value} {what}" for value, what in zip(row, ("audits", "tokens", "near-ties", "defects"))),
        )


if __name__ == "__main__":
    main()
