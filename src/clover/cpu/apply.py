"""Put the fast layers of this package into a model by one call.

The model itself is never patched. A copy of its structure shares its weights, and layers of the copy are replaced.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from clover.cpu.attention import group_queries
from clover.cpu.blocks import streamline
from clover.cpu.linear import MAX_INT8_BYTES, can_pack, fast_layers, is_plain, may_replace
from clover.cpu.mapped import bytes_in_memory

AnyModule = TypeVar("AnyModule", bound=nn.Module)
MAX_SECOND_COPY = 2**30  # most bytes of weights in memory that packed weights may duplicate
_KNOWN_CODE = ("torch", "transformers", "transformers_modules")  # packages; the last has models' own code
_TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
)  # names of layers that read the same input
_SAMPLED = 64  # numbers of a weight that are compared


def fast_copy(module: AnyModule) -> AnyModule:
    """Return a copy of a module with fast layers over the same weights, or the module itself if none can be made.

    All parts must come from PyTorch, transformers or the model's own code, whose behaviour follows from weights and
    hooks. Other code, such as adapters, may have switches that a copy would miss.
    """
    known = all(type(part).__module__.partition(".")[0] in _KNOWN_CODE for part in module.modules())
    if not (known and can_speed_up(module)):
        return module
    made = shared_copy(module)
    speed_up(made)
    return made


def speed_up(module: nn.Module, int8: bool = False) -> None:
    """Replace attention, large linear layers and small operators in a module that `shared_copy` made.

    Does nothing for a module that is not on a CPU. With `int8` the linear layers round their weights for few rows.
    Weights are packed if they are in mapped files, which are then not read, or small enough for a second copy.
    """
    if not can_speed_up(module):
        return
    group_queries(module)
    layers: list[Any] = [
        part for part in module.modules() if type(part) is nn.Linear and may_replace(part.weight)
    ]
    packed = bytes_in_memory(module.parameters()) <= MAX_SECOND_COPY
    int8 = int8 and sum(layer.weight.numel() for layer in layers) <= MAX_INT8_BYTES
    for part, names in layer_groups(module, (nn.Linear,)):
        fast = fast_layers([getattr(part, name) for name in names], packed, int8)
        for name, layer in zip(names, fast, strict=True):
            setattr(part, name, layer)
    streamline(module)


def why_not_packed(module: nn.Module) -> str:
    """Return a sentence if the weights of a module could be packed, but take too much memory for that; "" if not."""
    weights = list(module.parameters())
    could = can_speed_up(module) and all(may_replace(one) and can_pack(one.dtype) for one in weights)
    if not could or bytes_in_memory(weights) <= MAX_SECOND_COPY:
        return ""
    line = "more than 1 GiB of its weights are not in mapped files, so they are not packed, and steps take longer"
    return f"{line}; on Linux, a directory with safetensors of this dtype avoids that"


def layer_groups(module: nn.Module, kinds: tuple[type, ...]) -> list[tuple[nn.Module, Sequence[str]]]:
    """Return the linear layers of exactly these classes, as groups of names in the part that has them.

    Layers that read the same input are one group; every other layer is its own group.
    """
    found: list[tuple[nn.Module, Sequence[str]]] = []
    for part in module.modules():
        children = {name: child for name, child in part.named_children() if type(child) in kinds}
        groups = [names for names in _TOGETHER if children.keys() >= set(names) and _alike(children, names)]
        grouped = {name for names in groups for name in names}
        found += [
            (part, names) for names in (*groups, *((name,) for name in children if name not in grouped))
        ]
    return found


def can_speed_up(module: nn.Module) -> bool:
    """Return True if a module is on a CPU and no part has a replaced `forward`, which a copy would ignore."""
    on_cpu = all(weight.device.type == "cpu" for weight in module.parameters())
    return on_cpu and not any("forward" in vars(part) for part in module.modules())


def shared_copy(module: AnyModule, keep: Sequence[object] = ()) -> AnyModule:
    """Return a copy of a module's structure that shares all tensors and the objects in `keep`."""
    # Weights that a hook computes, for example for pruning, are plain attributes.
    made = [one for part in module.modules() for one in vars(part).values() if isinstance(one, Tensor)]
    shared = [*module.parameters(), *module.buffers(), *made, *keep]
    return copy.deepcopy(module, {id(thing): thing for thing in shared})


def versions(weights: Iterable[Tensor]) -> list[tuple[int, int, list[float]]]:
    """Return for each weight its address, the number of writes, and on a CPU some of its numbers.

    While the result stays equal, copies of the weights are valid. The numbers reveal writes through `.data`, which
    PyTorch does not count.
    """
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version, _sample(weight))
        for weight in weights
    ]


def _sample(weight: Tensor) -> list[float]:
    """Return numbers from all parts of a weight; [] on a GPU, where the host would wait and no copies run."""
    if weight.device.type != "cpu":
        return []
    parts = [part.detach().flatten() for part in plain_parts(weight)]
    # The step is odd, because a multiple of the number of columns would read only a few columns.
    return [number for part in parts for number in part[:: part.numel() // _SAMPLED | 1].tolist()]


def plain_parts(weight: Tensor) -> list[Tensor]:
    """Return the plain tensors of a weight: itself, or the parts of a quantized one, such as torchao's."""
    flatten: Any = getattr(weight, "__tensor_flatten__", None)
    if is_plain(weight) or flatten is None:
        return [weight]
    names, _ = flatten()
    return [part for name in names for part in plain_parts(getattr(weight, name))]


def _alike(layers: dict[str, Any], names: Sequence[str]) -> bool:
    kinds = {(layers[n].weight.shape[1], layers[n].bias is None, layers[n].weight.dtype) for n in names}
    return len(kinds) == 1
