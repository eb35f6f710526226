"""Clover: speculative decoding that leaves the output of a language model as it is."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clover.api import load as load
    from clover.integrations.transformers import speculative as speculative
    from clover.sampling import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["__version__", "load", "speculative", "SamplingParams"]

# PyTorch asks the kernel for huge pages for large tensors: a step then waits less for addresses of weights. It reads
# this with its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {
    "load": "clover.api",
    "speculative": "clover.integrations.transformers",
    "SamplingParams": "clover.sampling",
}


def __getattr__(name: str) -> Any:
    """Import the Python interface, and PyTorch with it, on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
