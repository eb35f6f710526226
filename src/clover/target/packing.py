"""Faster linear layers on a CPU, by weights packed once for oneDNN, and for drafts by rounded ones.

Verifying a tree multiplies a few rows with every weight matrix. For two to thirty rows the general matrix product reads
a plain weight at a fraction of the memory's speed; from a packed one the same product takes half the time or less, and
so a tree costs little more than a single token. Layers that read the same input (query, key and value; gate and up)
are packed together and run as one product. A single row gains from neither where the layer is small.

Nothing of the text depends on a draft's weights, so there they are rounded: to 8 bits for few rows (`rounding`), to
bfloat16 for many, where the processor has products of it.

The model is left as it is: packed products take the place of the layers' own `forward` only inside a `with` block,
which leaves no trace on them. All users of a layer share its one packed weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clover.target.rounding import RoundedLinear, can_replace, can_round, rounding
from clover.target.rows import HeadRows, WholeHead
from clover.target.structure import swapped_forwards

_Version = tuple[int, int]
_MIN_ELEMENTS_OF_ONE_ROW = 2**18  # below it a packed product of one row gains nothing
_MAX_BYTES = 2**30  # a packed weight is a second copy: large models keep their memory
_SHARE = 16  # and have rounded weights of a sixteenth of their bytes at most
_ROWS = 8  # what the weights are packed for; other numbers of rows work, too
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of layers that read one input
_Forward = Callable[[Tensor], Tensor]
_State = tuple[bool, bool, list[_Version]]  # of a group: whether it is packed and rounded, and from what
_packed: WeakKeyDictionary[nn.Module, tuple[_State, list[_Forward]]] = WeakKeyDictionary()


class PackedLinears:
    """The large linear layers of a target and its draft, with packed weights, the draft's rounded.

    Where packing does not apply (a GPU, another dtype, models of more than 1 GiB, a build without oneDNN) layers run as
    they are. Of larger models a draft is still rounded for few rows if that takes little beside their weights.

    Args:
        target: whose layers are looked for. Weights that change later are packed anew by `refresh`.
        draft: likewise. What is no module has no layers.
        rounded: False if the draft's output has to be the same for every number of rows.
    """

    def __init__(self, target: object = None, draft: object = None, rounded: bool = True):
        own, others = (_groups(part) if isinstance(part, nn.Module) else [] for part in (target, draft))
        exact = set(target.modules()) if isinstance(target, nn.Module) else set()
        self._groups = list(dict.fromkeys([*own, *others]))
        self._to_round = [group for group in others if rounded and not exact.intersection(group)]
        self._rounded = bool(self._to_round)
        self._versions: list[_Version] = []
        self._forwards: list[tuple[dict[str, Any], _Forward]] = []

    def refresh(self) -> None:
        """Pack the weights, unless they are those that were packed before."""
        versions = [version for group in self._groups for version in _versions(group)]
        if versions == self._versions:
            return
        self._versions, self._forwards = versions, []
        packed = [group for group in self._groups if _can_pack(group)]
        packed = packed if _bytes(packed) <= _MAX_BYTES else []
        rounded, room = [], _MAX_BYTES // 4 if packed else _bytes(self._groups) // _SHARE
        for group in filter(_can_round, self._to_round):
            size = sum(layer.weight.numel() for layer in group)
            if size <= room:
                rounded, room = [*rounded, group], room - size
        for group in self._groups:
            if group in packed or group in rounded:
                forwards = _shared_forwards(group, group in packed, group in rounded)
                self._forwards += [(vars(layer), run) for layer, run in zip(group, forwards, strict=True)]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the layers on their packed weights inside the block."""
        with swapped_forwards(self._forwards), rounding(self._rounded):
            yield


def _bytes(groups: list[tuple[Any, ...]]) -> int:
    return sum(layer.weight.nbytes for group in groups for layer in group)


def _groups(module: nn.Module) -> list[tuple[Any, ...]]:
    """The linear layers of a module, those together that read one input."""
    groups = [group for part in module.modules() for group in _together(part)]
    grouped = {layer for group in groups for layer in group}
    alone = [(m,) for m in module.modules() if _is_plain_linear(m) and m not in grouped]
    return list(dict.fromkeys([*groups, *alone]))


def _together(module: nn.Module) -> list[tuple[nn.Module, ...]]:
    """Layers of a module that read one input."""
    parts = dict(module.named_children())
    found = [tuple(parts[name] for name in names) for names in _TOGETHER if parts.keys() >= set(names)]
    return [group for group in found if all(map(_is_plain_linear, group)) and _are_alike(group)]


def _are_alike(group: tuple[Any, ...]) -> bool:
    return len({(m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in group}) == 1


def _is_plain_linear(module: nn.Module) -> bool:
    kind = type(module.linear if isinstance(module, WholeHead) else module)
    return kind in (nn.Linear, HeadRows) and not cast(Tensor, module.weight).is_inference()


def _can_pack(group: tuple[Any, ...]) -> bool:
    own = not isinstance(group[0], WholeHead)  # the target's is packed already
    suits = can_replace(*(layer.weight for layer in group))
    return own and suits and not _replaced(group) and torch.backends.mkldnn.is_available()


def _can_round(group: tuple[Any, ...]) -> bool:
    return can_round(*(layer.weight for layer in group)) and not _replaced(group)


def _replaced(group: tuple[Any, ...]) -> bool:
    """Whether somebody else has replaced what the layers do."""
    layers = [layer.linear if isinstance(layer, WholeHead) else layer for layer in group]
    return any("forward" in vars(layer) for layer in (*group, *layers))


def _versions(group: tuple[Any, ...]) -> list[_Version]:
    """Change whenever a weight does."""
    return [(layer.weight.data_ptr(), layer.weight._version) for layer in group]


def _shared_forwards(group: tuple[nn.Module, ...], packed: bool, rounded: bool) -> list[_Forward]:
    state = (packed, rounded, _versions(group))
    known = _packed.get(group[0])
    if known is None or known[0] != state:
        known = _packed[group[0]] = (state, _PackedGroup(group, packed, rounded).forwards())
    return known[1]


class _PackedGroup:
    """Layers that read the same input, as one product; or a layer alone."""

    def __init__(self, layers: tuple[Any, ...], packed: bool, rounded: bool):
        weights, biases = [layer.weight.detach() for layer in layers], [layer.bias for layer in layers]
        several = len(weights) > 1
        whole = torch.cat(weights) if several else weights[0]
        bias = torch.cat(biases) if several and biases[0] is not None else biases[0]
        self.rounded = RoundedLinear(whole, bias) if rounded else None
        self.dtype = torch.bfloat16 if rounded and torch.cpu._is_avx512_bf16_supported() else whole.dtype
        # The operator that PyTorch's own compiler puts in the place of a linear layer when weights are frozen.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(whole.to(self.dtype), _ROWS) if packed else None
        self.bias = None if bias is None else bias.to(self.dtype)
        self.operator = torch.ops.mkldnn._linear_pointwise.default
        self.sizes = [len(weight) for weight in weights]
        small = max(weight.numel() for weight in weights) < _MIN_ELEMENTS_OF_ONE_ROW
        self.one_row = whole.shape[1] if small else 0  # inputs of so many elements take the plain weights
        self.plain: list[_Forward] = [
            layer.linear
            if isinstance(layer, WholeHead)
            else partial(F.linear, weight=weight, bias=layer.bias)
            for layer, weight in zip(layers, weights, strict=True)
        ]
        self.inputs: Tensor | None = None  # of the last product, until the last layer has its share of it
        self.outputs: Sequence[Tensor] = ()

    def forwards(self) -> list[_Forward]:
        """What takes the place of each layer's `forward`."""
        return [self._forward(index) for index in range(len(self.sizes))]

    def product(self, inputs: Tensor) -> Tensor:
        """The outputs of all layers side by side."""
        return self.operator(inputs.to(self.dtype), self.packed, self.bias, "none", [], "").to(inputs.dtype)

    def _product_of(self, inputs: Tensor) -> _Forward | None:
        """What gives the outputs of all layers side by side; None where each is better run as it is."""
        if self.rounded is not None and self.rounded.takes(inputs):
            return self.rounded
        return None if self.packed is None or inputs.numel() <= self.one_row else self.product

    def _forward(self, index: int) -> _Forward:
        plain, last = self.plain[index], index == len(self.sizes) - 1

        def forward(inputs: Tensor) -> Tensor:
            run = self._product_of(inputs)
            if run is None:
                return plain(inputs)
            if last and index == 0:
                return run(inputs)
            if index == 0 or inputs is not self.inputs:
                self.inputs, self.outputs = inputs, run(inputs).split(self.sizes, dim=-1)
            output = self.outputs[index]
            if last:
                self.inputs, self.outputs = None, ()
            return output

        return forward
