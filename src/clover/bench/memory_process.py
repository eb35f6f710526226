"""The process that measures how much memory one method takes on a CPU: a `MemoryJob` on stdin, bytes on stdout.

First a tiny model is decoded, so that Python, the libraries and their buffers are in memory; what the process grows by
from then on, at most, is counted. Loading may briefly hold a second copy of the weights: the mark is set back after it,
where the kernel allows that.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from clover.api import find_tuning
from clover.bench.memory import MemoryJob
from clover.bench.methods import (
    ASSISTED,
    OWN_TREE,
    TRANSFORMERS,
    WITHOUT_DRAFT,
    load_assistant,
    make_contender,
)
from clover.drafts import RecallDraft, load_draft
from clover.interleaved import make_batches
from clover.target import TargetModel

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_KIB = 1024


def measure(job: MemoryJob) -> dict[int, int]:
    """Bytes by batch size."""
    torch.set_num_threads(job.threads)
    _decode_something_tiny()
    before = _status("VmRSS")
    target = TargetModel.load(
        job.target, dtype=job.dtype, device="cpu", trust_remote_code=job.trust_remote_code
    )
    draft = None if job.method in WITHOUT_DRAFT else load_draft(job.draft, target)
    assistant: Any = None
    if job.method == ASSISTED:
        assistant = load_assistant(str(job.assistant), target, job.trust_remote_code)
    tuning = find_tuning(job.draft, target)
    contender = make_contender(job.method, target, draft, assistant, tuning)
    peaks = {}
    for size in sorted(job.batch_sizes):
        batches = make_batches(job.prompts[:size], size, 0.0, job.max_new_tokens, target.context_length)
        _set_back()
        contender.decode(batches[0])
        peaks[size] = _status("VmHWM") - before
    return peaks


def _decode_something_tiny() -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    target = TargetModel(LlamaForCausalLM(config))
    draft = RecallDraft.from_target(target).eval()
    for name in (OWN_TREE, TRANSFORMERS):
        make_contender(name, target, draft).decode(make_batches([(1, 2, 3)], 2, 0.0, 8, 64)[0])


def _set_back() -> None:
    """Give unused memory back to the system, and set the high-water mark to what is held now."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5", encoding="ascii")
    except (
        OSError,
        AttributeError,
    ):  # another C library, or not allowed: the mark stays, and is at most too high
        return


def _status(name: str) -> int:
    """Bytes that the kernel's status of this process gives as `name`."""
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return _KIB * int(value.split()[0])
    raise AssertionError(f"{_STATUS} has no {name}")


if __name__ == "__main__":
    values = json.load(sys.stdin)
    for listed in ("prompts", "batch_sizes"):
        values[listed] = tuple(map(tuple, values[listed])) if listed == "prompts" else tuple(values[listed])
    print(json.dumps(measure(MemoryJob(**values))))
