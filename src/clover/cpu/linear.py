"""Linear layers that are fast with few rows on a CPU: by packed weights, and in drafts by int8 weights.

Verifying a tree multiplies two to thirty rows with every weight matrix. From a weight packed for oneDNN that takes
half the time or less of the general product, and so a tree costs little more than a single token. Layers that read
one input (query, key and value; gate and up) run as one product.

Nothing of the text depends on a draft's weights. So there few rows take int8 weights, with a scale per output: a
quarter of what float32 reads. Many rows take packed weights of bfloat16. A target's weights are never rounded.

`shared_copy` copies a model's structure over the same weights, and `speed_up` puts these layers into the copy.
Gradients and compilers get the plain product. Packed and int8 weights are made once, when a layer first has few
rows: its weights must not change after that.

Shapes: O outputs, I inputs, both of one layer.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)
MAX_BYTES = 2**30  # a packed weight is a second copy: large models keep their memory
MAX_INT8_BYTES = 2**28
INT8_ROWS = 32  # at most: with more the plain product is as fast
_INT8_ROWS_BESIDE_PACKED = {"AVX512": 32, "AVX2": 8}  # at most: with more, packed weights are as fast
PACKED_ROWS = 256  # at most: prompts and training texts gain nothing
_MIN_ELEMENTS = 2**16  # of a weight: below it the call itself takes longer than the product
_MIN_ELEMENTS_OF_ONE_ROW = 2**18  # below it a packed product of one row gains nothing
_PACKED_FOR = 8  # rows; other numbers of rows work, too
_INT8_MULTIPLE = 64  # inputs are a multiple of it: the operator reads 16 at once, also past the end
_SAMPLED = 64  # numbers of a weight that tell whether it is the same still
_KNOWN_CODE = ("torch", "transformers", "transformers_modules")  # packages; the last has models' own code
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of layers that read one input


class Int8Linear:
    """`x Wᵀ + b` for a few rows x on a CPU, in bfloat16, W [O, 64 n] as int8 weights, with a scale per output."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        exact = weight.detach().to(torch.float32)
        least = torch.finfo(torch.float32).tiny  # for outputs whose weights are all zero
        self.scales = (exact.abs().amax(1) / 127).clamp_min(least).to(torch.bfloat16)
        whole = (exact / self.scales[:, None]).round().clamp(-127, 127)
        self.weight, self.bias = whole.to(torch.int8).contiguous(), bias

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs [..., I] to outputs [..., O] of their dtype."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(torch.bfloat16).contiguous()
        outputs = torch._weight_int8pack_mm(rows, self.weight, self.scales).to(inputs.dtype)
        outputs = outputs.view(*inputs.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


class PackedLinear:
    """`x Wᵀ + b` on a CPU with W [O, I] packed for oneDNN; float32 or bfloat16, its dtype is that of the product."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.dtype = weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR)
        self.bias = None if bias is None else bias.to(self.dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs [..., I] to outputs [..., O] of their dtype."""
        rows = inputs.to(self.dtype)
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "").to(
            inputs.dtype
        )


class _Product:
    """One product in place of a few layers that read the same input, or of one alone."""

    def __init__(self, layers: Sequence[Any], packed: bool, int8: bool):
        self.weights, self.biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        self.sizes, self.width = [len(weight) for weight in self.weights], self.weights[0].shape[1]
        self.packed = packed
        self.int8_rows = int8_rows(packed) if int8 else 0
        self.least = 1 if max(weight.numel() for weight in self.weights) < _MIN_ELEMENTS_OF_ONE_ROW else 0
        self.made: dict[str, Int8Linear | PackedLinear] = {}
        self.inputs: Tensor | None = None  # of the last product, until the last layer has its share of it
        self.outputs: Sequence[Tensor] = ()

    def __call__(self, inputs: Tensor, index: int) -> Tensor | None:
        """The outputs of one layer; None where it is better run as it is."""
        rows = inputs.numel() // self.width
        if 0 < rows <= self.int8_rows:
            run = self._make("int8")
        elif self.packed and self.least < rows <= PACKED_ROWS:
            run = self._make("packed")
        else:
            return None
        last = len(self.sizes) - 1
        if last == 0:
            return run(inputs)
        if index == 0 or inputs is not self.inputs:
            self.inputs, self.outputs = inputs, run(inputs).split(self.sizes, dim=-1)
        output = self.outputs[index]
        if index == last:
            self.inputs, self.outputs = None, ()
        return output

    def _make(self, kind: str) -> Int8Linear | PackedLinear:
        if kind not in self.made:
            weight = torch.cat([weight.detach() for weight in self.weights])
            bias = None if self.biases[0] is None else torch.cat([bias.detach() for bias in self.biases])
            if kind == "int8":
                self.made[kind] = Int8Linear(weight, bias)
            else:
                narrow = self.int8_rows > 0 and torch.cpu._is_avx512_bf16_supported()
                self.made[kind] = PackedLinear(weight.to(torch.bfloat16) if narrow else weight, bias)
        return self.made[kind]


class FastLinear(nn.Linear):
    """A linear layer over another's weights, as fast as this machine can run it with few rows."""

    def __init__(self, layer: nn.Linear, product: _Product, index: int):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.training = layer.training
        self._plain = (layer,)  # in a tuple it is no part of this one
        self._product, self._index = product, index

    def forward(self, input: Tensor) -> Tensor:
        """[..., I] to [..., O]."""
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            output = self._product(input, self._index)
            if output is not None:
                return output
        return self._plain[0](input)


def fast_linear(layer: nn.Linear, packed: bool, int8: bool) -> nn.Linear:
    """The layer as a `FastLinear` where that is faster; else itself."""
    if "forward" in vars(layer) or type(layer) not in (nn.Linear, FastLinear):
        return layer
    return _fast((layer,), packed, int8 and layer.weight.numel() <= MAX_INT8_BYTES)[0]


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer of this weight [O, I] and bias [O], without gradient; PyTorch's random numbers stay the caller's."""
    layer: Any = nn.Linear(1, 1, bias=False, device="meta")  # elsewhere it would draw a weight
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def versions(weights: Iterable[Tensor]) -> list[tuple[int, int, list[float]]]:
    """Where weights are, how often each was written, and on a CPU some of its numbers.

    Equal as long as copies of them hold. The numbers tell what is written through `.data`, which nothing counts.
    """
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version, _sample(weight))
        for weight in weights
    ]


def _sample(weight: Tensor) -> list[float]:
    """Numbers all over a weight; none on a GPU, where copies are not run and the host would wait."""
    if weight.device.type != "cpu":
        return []
    step = weight.numel() // _SAMPLED | 1  # odd: a multiple of the columns would stay in a few of them
    return weight.detach().flatten()[::step].tolist()


def shared_copy(module: AnyModule, keep: Sequence[object] = ()) -> AnyModule:
    """A copy of a module's structure over the same tensors and `keep`, in which layers can be replaced."""
    shared = [*module.parameters(), *module.buffers(), *keep]
    return copy.deepcopy(module, {id(thing): thing for thing in shared})


def can_speed_up(module: nn.Module) -> bool:
    """Whether a module is on a CPU, and nobody has replaced what a part of it does, which a copy would not tell."""
    on_cpu = all(weight.device.type == "cpu" for weight in module.parameters())
    return on_cpu and not any("forward" in vars(part) for part in module.modules())


def runs_known_code(module: nn.Module) -> bool:
    """Whether all parts are of PyTorch, transformers, or the code that came with the model.

    What these do is said by their weights and hooks. Others, such as adapters, may have switches that a copy misses.
    """
    return all(type(part).__module__.partition(".")[0] in _KNOWN_CODE for part in module.modules())


def speed_up(module: nn.Module, int8: bool) -> None:
    """Replace a module's large linear layers by `FastLinear`, as far as packed weights find room."""
    layers: list[Any] = [part for part in module.modules() if _suits(part)]
    packed = sum(layer.weight.nbytes for layer in layers) <= MAX_BYTES
    int8 = int8 and sum(layer.weight.numel() for layer in layers) <= MAX_INT8_BYTES
    for part in list(module.modules()):
        children = {name: child for name, child in part.named_children() if type(child) is nn.Linear}
        groups = [names for names in _TOGETHER if children.keys() >= set(names) and _alike(children, names)]
        grouped = {name for names in groups for name in names}
        for names in [*groups, *((name,) for name in children if name not in grouped)]:
            for name, fast in zip(
                names, _fast([children[name] for name in names], packed, int8), strict=True
            ):
                setattr(part, name, fast)


def int8_rows(packed: bool) -> int:
    """Rows up to which int8 weights are the fastest here, where they have packed ones beside them or not."""
    return _INT8_ROWS_BESIDE_PACKED[torch.backends.cpu.get_cpu_capability()] if packed else INT8_ROWS


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of this dtype here; those in bfloat16 need a processor that computes with it."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def can_have_int8(*weights: Tensor) -> bool:
    """Whether this processor has a product for these weights [O, I] as int8."""
    operator = torch.backends.cpu.get_cpu_capability() in _INT8_ROWS_BESIDE_PACKED
    return operator and all(map(_may_replace, weights)) and weights[0].shape[1] % _INT8_MULTIPLE == 0


def _fast(layers: Sequence[nn.Linear], packed: bool, int8: bool) -> Sequence[nn.Linear]:
    weights = [layer.weight for layer in layers]
    suits = sum(weight.numel() for weight in weights) >= _MIN_ELEMENTS and all(map(_may_replace, weights))
    packed = packed and can_pack(weights[0].dtype)
    int8 = int8 and can_have_int8(*weights)
    if not suits or not (packed or int8):
        return layers
    product = _Product(layers, packed, int8)
    return [FastLinear(layer, product, index) for index, layer in enumerate(layers)]


def _suits(module: nn.Module) -> bool:
    return type(module) is nn.Linear and _may_replace(module.weight)


def _may_replace(weight: Tensor) -> bool:
    fits = weight.dtype in (torch.float32, torch.bfloat16) and weight.device.type == "cpu"
    return fits and not weight.is_inference()


def _alike(layers: dict[str, nn.Linear], names: Sequence[str]) -> bool:
    kinds = {(layers[n].in_features, layers[n].bias is None, layers[n].weight.dtype) for n in names}
    return len(kinds) == 1
