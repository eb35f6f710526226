"""Peak memory while decoding.

On a GPU PyTorch counts it. On a CPU each method runs in a fresh process (this module run as a program), and the kernel
says what the process has held at most, the high-water mark of the resident set. The process first decodes with a tiny
model, so that Python, the libraries and their buffers are in memory; what it grows by from then on is counted. Loading
may briefly hold a second copy of the weights: the mark is set back after it, where the kernel allows that.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clover.bench.context import make_target
from clover.bench.methods import PLAIN, TRANSFORMERS, Method, make_method
from clover.bench.options import BenchOptions
from clover.bench.setup import Bench
from clover.engine import Request
from clover.errors import UserError
from clover.interleaved import make_batches

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_KIB = 1024


def resident_peaks(name: str, options: BenchOptions, batch_sizes: Sequence[int]) -> dict[int, int]:
    """Bytes by batch size, measured in a process of its own; nothing where there is no Linux kernel to ask.

    Raises:
        UserError: the process failed; with its last line.
    """
    if sys.platform != "linux" or not batch_sizes:
        return {}
    job = {"name": name, "threads": torch.get_num_threads(), "options": asdict(options)}
    job["options"] |= {"batch_sizes": batch_sizes, "device": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "clover.bench.memory"],
        input=json.dumps(job, default=str), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the peak memory of {name} could not be measured: {reason}")
    return {int(size): peak for size, peak in json.loads(done.stdout.splitlines()[-1]).items()}


def cuda_peak(method: Method, batch: Sequence[Request], unused: Iterable[nn.Module]) -> int:
    """Bytes that PyTorch held on the GPU at most while it decoded `batch`.

    Args:
        unused: models that are loaded, too, but take no part; their weights are not counted.
    """
    torch.cuda.reset_peak_memory_stats()
    method.decode(batch)
    weights = {weight.data_ptr(): weight.nbytes for model in unused for weight in model.parameters()}
    return torch.cuda.max_memory_allocated() - sum(weights.values())


def measure(name: str, threads: int, options: dict[str, Any]) -> dict[int, int]:
    """Bytes by batch size, in this process."""
    torch.set_num_threads(threads)
    tiny = make_target("cpu", None, 64)
    for warm in (PLAIN, TRANSFORMERS):
        make_method(warm, tiny, "").decode(make_batches([(1, 2, 3)], 2, 0.0, 8, 64)[0])
    before = _status("VmRSS")
    bench = Bench(BenchOptions(**options), [name])
    peaks = {}
    for size in sorted(options["batch_sizes"]):
        batch = bench.batches(size, 0.0)[0]
        _set_back()
        bench.methods[0].decode(batch)
        peaks[size] = _status("VmHWM") - before
    return peaks


def _set_back() -> None:
    """Give unused memory back to the system, and set the high-water mark to what is held now."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5", encoding="ascii")
    except (OSError, AttributeError):  # another C library, or not allowed: the mark is at most too high
        return


def _status(name: str) -> int:
    """Bytes that the kernel's status of this process gives as `name`."""
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return _KIB * int(value.split()[0])
    raise AssertionError(f"{_STATUS} has no {name}")


if __name__ == "__main__":
    print(json.dumps(measure(**json.load(sys.stdin))))
