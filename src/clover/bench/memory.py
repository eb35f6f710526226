"""Peak memory while decoding.

On a GPU PyTorch counts it. On a CPU the most that a process has held at any time says it, the kernel's high-water mark
of the resident set: each method runs in a fresh process of its own (`clover.bench.memory_process`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import nn

from clover.bench.methods import Contender
from clover.engine import Request
from clover.errors import UserError


@dataclass(frozen=True)
class MemoryJob:
    """What a process of its own decodes; target, draft and the like are those of `BenchOptions`.

    Args:
        method: its name.
        threads: of PyTorch.
        prompts: of one batch of the largest size, as token ids.
        batch_sizes: each is decoded once, with the first prompts.
    """

    method: str
    target: str
    draft: str
    assistant: str | None
    dtype: str | None
    trust_remote_code: bool
    threads: int
    prompts: tuple[tuple[int, ...], ...]
    batch_sizes: tuple[int, ...]
    max_new_tokens: int


def resident_peaks(job: MemoryJob) -> dict[int, int]:
    """Bytes by batch size, measured in a process of its own; nothing where there is no Linux kernel to ask.

    Raises:
        UserError: the process failed; with its last line.
    """
    if sys.platform != "linux":
        return {}
    done = subprocess.run(
        [sys.executable, "-m", "clover.bench.memory_process"],
        input=json.dumps(asdict(job)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the peak memory of {job.method} could not be measured: {reason}")
    return {int(size): peak for size, peak in json.loads(done.stdout.splitlines()[-1]).items()}


def cuda_peak(contender: Contender, batch: Sequence[Request], unused: nn.Module | None) -> int:
    """Bytes that PyTorch held on the GPU at most while it decoded `batch`.

    Args:
        unused: a model that is loaded, too, but takes no part; its weights are not counted.
    """
    torch.cuda.reset_peak_memory_stats()
    contender.decode(batch)
    weights = 0 if unused is None else sum(weight.nbytes for weight in unused.parameters())
    return torch.cuda.max_memory_allocated() - weights
