"""Linear layers that are fast with few rows on a CPU: with packed weights, and in drafts with int8 weights.

Verifying a tree multiplies two to thirty rows by every weight matrix. With a weight packed for oneDNN, this takes at
most half the time of the general product, so a tree costs little more than a single token. Many rows are not slower
either. So all forward passes read only the packed weights, and plain weights in a mapped file take no memory. Layers
that read the same input (query, key and value; gate and up) run as one product.

The text does not depend on a draft's weights. So a draft uses int8 weights with one scale per output for few rows,
which have a quarter of the bytes of float32, and weights packed as bfloat16 for more rows. A target's weights are never
rounded.

Gradients and compilers use the plain product. Packed and int8 weights are made when a layer first runs few rows; after
that its weights must not change.

Shapes: O outputs and I inputs of one layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MAX_INT8_BYTES = 2**28  # most bytes of a model's int8 weights
INT8_ROWS = 32  # with more rows, the plain product is as fast as int8 weights
_INT8_ROWS_BESIDE_PACKED = {"AVX512": 32, "AVX2": 8}  # with more rows, packed weights are as fast
MIN_ELEMENTS = 2**16  # for smaller weights the call itself takes longer than the product
MIN_ELEMENTS_OF_ONE_ROW = 2**18  # for smaller weights a packed product of one row gains nothing
_PACKED_FOR = 32  # the number of rows for which the packing is optimized; it works with any number
_INT8_MULTIPLE = 64  # of I, because the operator reads 16 numbers at once, even beyond the end


class Int8Linear:
    """The product `x Wᵀ + b` in bfloat16 for a few rows x; W [O, 64 n] is rounded to int8, one scale per output."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        exact = weight.detach().to(torch.float32)
        least = torch.finfo(torch.float32).tiny  # the scale of an output whose weights are all zero
        self.scales = (exact.abs().amax(1) / 127).clamp_min(least).to(torch.bfloat16)
        whole = (exact / self.scales[:, None]).round().clamp(-127, 127)
        self.weight, self.bias = whole.to(torch.int8).contiguous(), bias

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return outputs [..., O] for inputs [..., I], in the dtype of the inputs."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(torch.bfloat16).contiguous()
        outputs = torch._weight_int8pack_mm(rows, self.weight, self.scales).to(inputs.dtype)
        outputs = outputs.view(*inputs.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


class PackedLinear:
    """The product `x Wᵀ + b` in the dtype of W [O, I], float32 or bfloat16; W is packed for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.dtype = weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR)
        self.bias = None if bias is None else bias.to(self.dtype)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return outputs [..., O] for inputs [..., I], in the dtype of the inputs."""
        rows = inputs.to(self.dtype)
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "").to(
            inputs.dtype
        )


class SharedOutputs:
    """The outputs of layers that read the same input, computed by one product.

    A model calls the layers one by one. The first call computes and keeps the outputs of all layers. The following
    calls return their parts, if they come with the same tensor object. A call with another tensor computes again, so
    the result is right in any order of calls, and from several threads.
    """

    def __init__(self, sizes: Sequence[int]):
        self._sizes = sizes
        self._kept: tuple[Tensor, Sequence[Tensor]] | None = None  # inputs and outputs

    def part(self, inputs: Tensor, index: int, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the outputs [..., O] of layer `index`; `run` returns those of all layers, side by side."""
        kept = self._kept
        if index == 0 or kept is None or kept[0] is not inputs:
            kept = inputs, run(inputs).split(self._sizes, dim=-1)
        # After the last layer nothing is kept, to free the memory before the next step.
        self._kept = kept if index < len(self._sizes) - 1 else None
        return kept[1][index]


class _Product(SharedOutputs):
    """One product for a layer, or for several layers that read the same input."""

    def __init__(self, layers: Sequence[Any], packed: bool, int8: bool):
        self.weights, self.biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        super().__init__([len(weight) for weight in self.weights])
        self.packed, self.width = packed, self.weights[0].shape[1]
        self.int8_rows = int8_rows(packed) if int8 else 0
        self.least = 1 if max(weight.numel() for weight in self.weights) < MIN_ELEMENTS_OF_ONE_ROW else 0
        self.made: dict[str, Int8Linear | PackedLinear] = {}

    def __call__(self, inputs: Tensor, index: int) -> Tensor | None:
        """Return the outputs of layer `index`; None if the plain product is faster."""
        rows = inputs.numel() // self.width
        if 0 < rows <= self.int8_rows:
            run = self._make("int8")
        elif self.packed and rows > self.least:
            run = self._make("packed")
        else:
            return None
        return self.part(inputs, index, run)

    def _make(self, kind: str) -> Int8Linear | PackedLinear:
        """Return the product with int8 or packed weights, made on the first call."""
        if kind not in self.made:
            weights = [weight.detach() for weight in self.weights]
            weight = torch.cat(weights) if len(weights) > 1 else weights[0]
            bias = None if self.biases[0] is None else torch.cat([bias.detach() for bias in self.biases])
            if kind == "int8":
                self.made[kind] = Int8Linear(weight, bias)
            else:
                narrow = self.int8_rows > 0 and torch.cpu._is_avx512_bf16_supported()
                self.made[kind] = PackedLinear(weight.to(torch.bfloat16) if narrow else weight, bias)
        return self.made[kind]


class FastLinear(nn.Linear):
    """A linear layer that shares another one's weights, and is as fast as possible here with few rows."""

    def __init__(self, layer: nn.Linear, product: _Product, index: int):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.training = layer.training
        self._plain = (layer,)  # a tuple keeps nn.Module from registering it a second time
        self.product, self._index = product, index

    def forward(self, input: Tensor) -> Tensor:
        """Return outputs [..., O] for inputs [..., I]."""
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            output = self.product(input, self._index)
            if output is not None:
                return output
        return self._plain[0](input)


def int8_linear(layer: nn.Linear) -> nn.Linear:
    """Return the layer with int8 weights for few rows if that is faster, otherwise the layer itself."""
    if "forward" in vars(layer) or type(layer) not in (nn.Linear, FastLinear):
        return layer
    return fast_layers((layer,), packed=False, int8=layer.weight.numel() <= MAX_INT8_BYTES)[0]


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a frozen layer with this weight [O, I] and bias [O], without drawing random numbers."""
    # On "meta" no random weight is drawn.
    layer: Any = nn.Linear(1, 1, bias=False, device="meta", dtype=weight.dtype)
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def int8_rows(packed: bool) -> int:
    """Return the largest number of rows for which int8 weights are fastest here, with or without packed weights."""
    return _INT8_ROWS_BESIDE_PACKED[torch.backends.cpu.get_cpu_capability()] if packed else INT8_ROWS


def can_pack(dtype: torch.dtype) -> bool:
    """Return True if oneDNN can pack weights of this dtype here; bfloat16 needs a processor that computes in it."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def can_have_int8(*weights: Tensor) -> bool:
    """Return True if this processor can multiply by these weights [O, I] in int8."""
    operator = torch.backends.cpu.get_cpu_capability() in _INT8_ROWS_BESIDE_PACKED
    return operator and all(map(may_replace, weights)) and weights[0].shape[1] % _INT8_MULTIPLE == 0


def fast_layers(layers: Sequence[nn.Linear], packed: bool, int8: bool) -> Sequence[nn.Linear]:
    """Replace layers that read the same input by `FastLinear` with one product, unless that is not faster."""
    weights = [layer.weight for layer in layers]
    suits = sum(weight.numel() for weight in weights) >= MIN_ELEMENTS and all(map(may_replace, weights))
    packed = packed and can_pack(weights[0].dtype)
    int8 = int8 and can_have_int8(*weights)
    if not suits or not (packed or int8):
        return layers
    product = _Product(layers, packed, int8)
    return [FastLinear(layer, product, index) for index, layer in enumerate(layers)]


def may_replace(weight: Tensor) -> bool:
    """Return True if there is a fast product for a weight of this dtype and device."""
    fits = weight.dtype in (torch.float32, torch.bfloat16) and weight.device.type == "cpu"
    return fits and is_plain(weight) and not weight.is_inference()


def is_plain(weight: Tensor) -> bool:
    """Return False for a tensor of a special class, such as torchao's quantized ones."""
    return type(weight) in (Tensor, nn.Parameter, nn.Buffer)
