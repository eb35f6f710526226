"""What importing the package sets for the whole process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SHOW = """
import clover, torch
kept = torch.ones(2**25)
(line,) = [line for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")]
print(int(line.split()[1]) * 1024 / kept.nbytes)
"""


def share_of_huge_pages(**environment: str) -> float:
    """Of a tensor of 128 MiB that a new process makes."""
    every = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", _SHOW], env=every | environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.skipif(
    not _KERNEL.exists() or "[madvise]" not in _KERNEL.read_text(),
    reason="this kernel gives huge pages to none, or to all",
)
def test_large_tensors_lie_in_huge_pages_unless_the_user_says_no() -> None:
    assert share_of_huge_pages(THP_MEM_ALLOC_ENABLE="0") < 0.05
    assert share_of_huge_pages() > 0.3  # The kernel gives as many as it has.
