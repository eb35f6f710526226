"""Reading what goes into a module, inside a compiled forward.

`captured_input` registers a hook for one call, which a compiler can neither trace nor expect to find again. A tap takes
the place of the module's `forward` in a `with` block around the compiled call, and every time it is the same one.

Shapes: B batch, N nodes, W width of the hidden states that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Taps:
    """Taps on the inputs of some modules; the same module may be named several times.

    Args:
        modules: in the order in which their inputs are wanted; none for nothing to read.
    """

    def __init__(self, modules: Sequence[nn.Module]):
        unique = list(dict.fromkeys(modules))
        self._order = [unique.index(module) for module in modules]
        self._inputs: dict[int, Tensor] = {}
        self._forwards = [(vars(module), self._tapped(at, module)) for at, module in enumerate(unique)]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Tap the modules inside the block, which leaves no trace on them."""
        for names, tapped in self._forwards:
            names["forward"] = tapped
        try:
            yield
        finally:
            for names, _ in self._forwards:
                del names["forward"]

    def take(self, otherwise: Tensor) -> Tensor:
        """The inputs of the last run side by side, [B, N, W]; `otherwise` where there is nothing to read."""
        read = [self._inputs[at] for at in self._order]
        self._inputs.clear()
        if not read:
            return otherwise
        return read[0] if len(read) == 1 else torch.cat(read, dim=-1)

    def _tapped(self, at: int, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def tapped(inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._inputs[at] = inputs
            return forward(inputs, *args, **kwargs)

        return tapped
