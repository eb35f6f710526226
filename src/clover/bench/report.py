"""What a benchmark found, and its JSON lines."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clover.bench.ceilings import Ceilings, StepWork
from clover.bench.context import Curve
from clover.bench.figures import Figures
from clover.bench.options import BenchOptions
from clover.files import write_text
from clover.provenance import machine, revision, versions


@dataclass(frozen=True)
class Origin:
    """Where the figures come from.

    Args:
        machine: the GPU's name, or the CPU's with the number of threads.
        versions: of Clover, PyTorch, transformers and Python.
        revision: of Clover's source code; None without a checkout.
        date: ISO 8601, UTC.
    """

    target: str
    draft: str
    device: str
    dtype: str
    machine: str
    threads: int
    versions: dict[str, str]
    revision: str | None
    command: str
    date: str


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run batches of a size, and why."""

    method: str
    batch_size: int
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything the benchmark of methods found.

    Args:
        prompts: different ones.
        figures: by batch size and temperature, plain decoding first.
    """

    origin: Origin
    work: StepWork
    ceilings: Ceilings
    prompts: int
    max_new_tokens: int
    figures: Sequence[Figures]
    refusals: Sequence[Refusal]

    def lines(self) -> list[dict[str, Any]]:
        """One JSON object per method, batch size and temperature, each with where it comes from."""
        common = {
            "prompts": self.prompts,
            "max_new_tokens": self.max_new_tokens,
            "ceilings": asdict(self.ceilings),
            "step_work": asdict(self.work),
            "origin": asdict(self.origin),
        }
        return [asdict(one) | common for one in self.figures]


@dataclass(frozen=True)
class ContextReport:
    """Cost of a step against the context, see `clover.bench.context`."""

    origin: Origin
    curves: tuple[Curve, ...]

    def lines(self) -> list[dict[str, Any]]:
        """One JSON object per method."""
        return [asdict(curve) | {"origin": asdict(self.origin)} for curve in self.curves]


def where_it_ran(options: BenchOptions, device: torch.device, dtype: str, target: str, draft: str) -> Origin:
    """The machine, the versions and the command of this run."""
    return Origin(
        target=target,
        draft=draft,
        device=device.type,
        dtype=dtype,
        machine=machine(device),
        threads=torch.get_num_threads(),
        versions=versions(),
        revision=revision(),
        command=options.command,
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def write_lines(path: Path, report: Report | ContextReport) -> None:
    """Write the report as JSON lines, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in report.lines()))
