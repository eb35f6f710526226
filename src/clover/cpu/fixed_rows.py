"""Linear layers that always multiply 32 rows, so that the bits of a row do not depend on the number of rows.

The order of the sums in a floating-point product follows from its sizes. With fixed sizes each row is summed in the
same order, whatever the other rows are. So rows go through the product 32 at a time, and zeros fill up the last part.
With AMX, 32 rows take hardly longer than one. When a target is loaded, `clover.target.exact` checks that this works.
Kernels whose results do not depend on the batch: He and others, "Defeating Nondeterminism in LLM Inference", Thinking
Machines, 2025.

Shapes: R rows, O outputs and I inputs of one layer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.cpu.apply import MAX_SECOND_COPY
from clover.cpu.exact import ExactModel, exact_copy, exact_layers, joined_bias, joined_weight
from clover.cpu.linear import PackedLinear, can_pack
from clover.cpu.mapped import bytes_in_memory
from clover.errors import UserError

_ROWS = 32
_DTYPES = (torch.float32, torch.bfloat16)


class FixedProduct:
    """The product `x Wᵀ + b` of rows x, 32 at a time.

    Args:
        weight: W [O, I].
        bias: b [O].
        packed: whether to pack W, which copies it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool):
        self._run: Callable[[Tensor], Tensor]
        if packed:
            self._run = PackedLinear(weight, bias)
        else:
            self._run = lambda rows: F.linear(rows, weight, bias)

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return [R, O] in `dtype` for rows [R, I]."""
        count = len(rows)
        filled = F.pad(rows, (0, 0, 0, -count % _ROWS))
        outputs = [self._run(part) for part in filled.split(_ROWS)]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[:count].to(dtype)


def fixed_rows_copy(model: nn.Module, find_parts: Callable[[Any], Collection[nn.Module]]) -> ExactModel:
    """Return a copy of a model whose linear layers multiply 32 rows at a time, in the parts that `find_parts` finds.

    UserError if the model is not entirely on a CPU, or its weights are quantized or neither bfloat16 nor float32.
    """
    dtypes = {weight.dtype for weight in model.parameters()}
    if not dtypes <= set(_DTYPES):
        raise UserError("exact texts need bfloat16 or float32 (--dtype); choose one, or leave --exact out")
    packed = all(map(can_pack, dtypes)) and bytes_in_memory(model.parameters()) <= MAX_SECOND_COPY

    def make(groups: Mapping[str, Sequence[Any]]) -> Iterator[Sequence[nn.Module]]:
        for layers in groups.values():
            # Weights that are not packed are used in place, because joining them would copy them.
            together = [layers] if packed else [[layer] for layer in layers]
            yield [layer for some in together for layer in exact_layers(some, _product(some, packed))]

    return exact_copy(model, find_parts, make)


def _product(layers: Sequence[Any], packed: bool) -> FixedProduct:
    return FixedProduct(joined_weight(layers), joined_bias(layers), packed)
