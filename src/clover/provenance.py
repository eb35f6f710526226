"""Where a result came from: versions, revision, machine, command."""

from __future__ import annotations

import importlib
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers


def versions() -> dict[str, str]:
    """Versions of Clover, PyTorch, transformers and Python."""
    return {
        "clover": importlib.import_module("clover").__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def revision() -> str | None:
    """The git revision of the checkout that Clover runs from, "-dirty" where files differ; None without a checkout."""
    here = Path(__file__)
    # An environment may lie inside another project's checkout: only one that holds this very file counts.
    if _git(here.parent, "ls-files", "--error-unmatch", here.parent.joinpath("__init__.py").name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")


def machine(device: torch.device) -> str:
    """The GPU's name, or the CPU's and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def command_line(name: str, options: Any, files: str = "", renamed: Mapping[str, str] | None = None) -> str:
    """The command line that chooses the same options.

    Args:
        name: of the command.
        options: a dataclass whose fields are named like the flags; those at their defaults are left out.
        files: the field that holds the command's argument or arguments, if it takes any.
        renamed: fields whose flags have another name.
    """
    given = getattr(options, files) if files else None
    words = ["clover", name, *(given if isinstance(given, tuple) else [given] if given else [])]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == files or value == field.default:
            continue
        flag = "--" + (renamed or {}).get(field.name, field.name).replace("_", "-")
        for one in value if isinstance(value, tuple) else (value,):
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join(words)


def _git(directory: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # looking must not write the index
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True, text=True, check=True, timeout=20, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
