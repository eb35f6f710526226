"""Record the provenance of a result: machine, versions, revision, command, date."""

from __future__ import annotations

import datetime
import hashlib
import importlib
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import transformers


@dataclass(frozen=True)
class Provenance:
    """Everything needed to reproduce a result: command, machine, versions, revision, date.

    The command sets the same options. The revision is git's; for an installed package it is "sha256:" and 12 digits of
    a digest of its files. The device is "cpu" or "cuda"; the date is ISO 8601, UTC, to the second.
    """

    command: str
    machine: str
    device: str
    dtype: str
    threads: int
    versions: dict[str, str]
    revision: str | None
    date: str

    @classmethod
    def here(cls, command: str, device: torch.device, dtype: torch.dtype) -> Provenance:
        """Return the provenance of a result that this process has just produced on `device`."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        kind, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
        place, source = machine(device), revision() or installed()
        return cls(command, place, device.type, kind, threads, versions(), source, now)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of a report's card."""
        known = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            ("device", f"{self.device}, {self.dtype} ({self.machine})"),
            ("versions", f"{known}, revision {self.revision or 'unknown'}"),
            ("command", f"{self.command}   ({self.date[:16].replace('T', ' ')} UTC)"),
        ]

    @property
    def line(self) -> str:
        """Return the line at the foot of a picture."""
        (_, device), (_, software), _ = self.facts
        return f"{self.date[:10]}   {device}   {software}"


def versions() -> dict[str, str]:
    """Return the versions of Clover, PyTorch, transformers and Python."""
    return {
        "clover": importlib.import_module("clover").__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def revision(package: Path = Path(__file__).parents[2]) -> str | None:
    """Return the git revision of a package's checkout, with "-dirty" if files differ; None without a checkout."""
    # The environment may be inside another project's checkout, so the checkout must contain this package's file.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(package, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")


def installed(distribution: str = "clover-decoding") -> str | None:
    """Return a digest of the files that pip installed, equal for the same wheel everywhere; None without a wheel."""
    try:
        record = metadata.distribution(distribution).read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return None
    # Files that pip compiled have no hash; scripts and the installation's metadata contain paths of this machine.
    lines = [line for line in record.splitlines() if line.startswith("clover/") and ",sha256=" in line]
    return (
        f"sha256:{hashlib.sha256(chr(10).join(sorted(lines)).encode()).hexdigest()[:12]}" if lines else None
    )


def machine(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads, cpus = torch.get_num_threads(), Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _git(directory: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # so that git does not write the index
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True, text=True, check=True, timeout=20, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
