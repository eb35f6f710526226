"""Linear layers whose weights and inputs are whole numbers of eight bits, summed exactly.

Every row of the input has a scale, and every output of a weight. Products are of int8 and sums of int32, which are
exact in any order, so the result of a row does not depend on the rows beside it: a token has the same numbers to the
last bit in a plain step, in a tree and in a batch. Of rows with outliers the numbers have fifteen bits: they go through
the product as two rows of int8 (docs/int8.md).

Gradients and compilers use the plain weights, which the layers share.

Shapes: R rows, O outputs and I inputs of one layer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clover.cache.whole import MOST, SHIFT
from clover.cpu.exact import (
    ExactLayer,
    ExactModel,
    exact_copy,
    exact_layers,
    joined_bias,
    joined_weight,
    weight_of,
)
from clover.cpu.linear import MAX_INT8_BYTES, FastLinear, int8_linear, may_replace
from clover.cpu.whole_attention import trial
from clover.errors import UserError

INT8 = "int8"  # how users name these weights
_BLOCK = 192  # rows of int8 that are multiplied at once: with more, a product takes the longer for each
_ROUNDED = 2048  # outputs whose weights are rounded at once
_WIDEST = 20_480  # outputs of one product: what lies between the operators stays small
# Of the outputs' length lost by rounding rows to eight bits: with more, they have fifteen. The first is taken that
# changes the distributions of a text by at most so many nats per token.
_LOUD, _CHANGED = (0.015, 0.01, 0.007, 0.0), 0.004
THRESHOLDS = (*_LOUD, _CHANGED)  # what `refine` decides by
_LARGE = 2**23  # numbers of an lm_head for which rounding the rows pays
# Finds tensors of a layout by name, or makes them by a function of the name, and keeps them; None if it cannot.
Keep = Callable[[Mapping[str, Tensor], Callable[[str], Tensor]], Mapping[str, Tensor] | None]
_LEAST = 1e-30  # of what is divided by: rows and weights that are all zero


@lru_cache(maxsize=1)
def sums_are_exact() -> bool:
    """Return True if this processor's products of int8 are exact in one of two ways, by what `_is_exact` tries."""
    return torch.backends.mkldnn.is_available() and (_signs_are_exact() or _is_exact(_Sums.of_halves))


@lru_cache(maxsize=1)
def _signs_are_exact() -> bool:
    """Return True if products of signed numbers are exact.

    Processors with AVX2 and without VNNI make the numbers of a row positive, up to 255, and add pairs of products in 16
    bits, which is too little. Then positive and negative numbers go through the product as two rows, up to 127.
    """
    return _is_exact(_Sums.of_signed)


def _is_exact(way: Callable[["_Sums", Tensor], Tensor]) -> bool:
    """Return True if sums are exact for random numbers and for the largest ones that there are."""
    rows, weight, products = trial(32, 64, 1024)
    sums, expected = _Sums(weight, weight.new_ones(64, dtype=torch.float32)), products.float()
    return all(torch.equal(way(sums, rows[:count]), expected[:count]) for count in (1, 2, 32))


class _Sums:
    """The exact sums of products of rows and a weight of int8, each times the scale of its output."""

    def __init__(self, weight: Tensor, scales: Tensor):
        self.packed = torch.ops.onednn.qlinear_prepack(weight, [1, weight.shape[1]])
        self.scales, self.zeros = scales, scales.new_zeros(len(scales), dtype=torch.int64)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return float32 [R, O] for rows int8 [R, I], between -127 and 127."""
        return self.of_signed(rows) if _signs_are_exact() else self.of_halves(rows)

    def of_signed(self, rows: Tensor) -> Tensor:
        """Return the sums of rows of int8 or uint8."""
        weight = (self.packed, self.scales, self.zeros, None)
        return torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, 0, *weight, 1.0, 0, torch.float32, "none", [], ""
        )

    def of_halves(self, rows: Tensor) -> Tensor:
        """Return the sums of rows of int8, whose positive and negative numbers are two rows."""
        halves = torch.cat([rows.clamp(min=0), rows.clamp(max=0).neg_()]).to(torch.uint8)
        sums = self.of_signed(halves)
        return sums[: len(rows)].sub_(sums[len(rows) :])


class Rounded(NamedTuple):
    """A weight as whole numbers int8 [O, I], and scales float32 [O]."""

    whole: Tensor
    scales: Tensor


class Int8Product:
    """The product `x Wᵀ + b` of rows x and a weight W [O, I], both rounded to whole numbers.

    Args:
        weight: of any floating dtype, rounded to eight bits with one scale per output; or rounded already.
        fine: round rows to fifteen bits, as two rows of int8, instead of eight.
        bias: b [O].
    """

    def __init__(self, weight: Tensor | Rounded, fine: bool = False, bias: Tensor | None = None):
        self.fine = fine
        if isinstance(weight, Rounded):
            parts = map(Rounded, *(part.split(_WIDEST) for part in weight))
        else:
            parts = map(_rounded, weight.detach().split(_WIDEST))
        self._parts = [_Sums(*part) for part in parts]
        self._sizes = [len(part.scales) for part in self._parts]
        self.bias = None if bias is None else bias.detach().to(torch.float32)

    def __call__(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return [R, O] in `dtype` for rows [R, I] of a floating dtype."""
        most = _BLOCK // 2 if self.fine else _BLOCK
        if len(self._parts) == 1 and len(rows) <= most:
            return self._outputs(self._parts[0], *self._whole(rows), self.bias).to(dtype)
        outputs = rows.new_empty(len(rows), sum(self._sizes), dtype=dtype)
        blocks = -(-len(rows) // most)  # of about the same number of rows
        for inputs, found in zip(rows.tensor_split(blocks), outputs.tensor_split(blocks), strict=True):
            whole, scales = self._whole(inputs)
            biases = repeat(None) if self.bias is None else self.bias.split(self._sizes)
            for part, to, bias in zip(self._parts, found.split(self._sizes, 1), biases, strict=False):
                to.copy_(self._outputs(part, whole, scales, bias))
        return outputs

    def _whole(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [R, I] as int8 [R, I] and scales [R, 1]; fine ones as [2 R, I]: 128 times the first R, and more.

        The operators are not fused, here and in `_outputs`: that could round otherwise at the end of a row.
        """
        exact = rows.to(torch.float32)
        scales = exact.abs().amax(1, keepdim=True).clamp_min_(_LEAST)
        scales = scales.div_(MOST * SHIFT if self.fine else MOST)
        whole = (exact / scales).round_()
        if not self.fine:
            return whole.to(torch.int8), scales
        count, width = whole.shape
        first = (whole / SHIFT).round_()
        both = whole.new_empty(2 * count, width, dtype=torch.int8)
        both[:count] = first
        both[count:] = whole.sub_(first, alpha=SHIFT)
        return both, scales

    def _outputs(self, part: _Sums, whole: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
        """Return the outputs float32 [R, O'] of a part of the weights."""
        sums, count = part(whole), len(scales)
        if self.fine:
            sums = sums[count:].add_(sums[:count], alpha=SHIFT)
        outputs = sums.mul_(scales)
        return outputs if bias is None else outputs.add_(bias)


def _rounded(weight: Tensor) -> Rounded:
    """Return a weight [O, I] as int8, with one scale per output; a part at a time, which takes little memory."""
    whole = weight.new_empty(weight.shape, dtype=torch.int8)
    scales = weight.new_empty(len(weight), dtype=torch.float32)
    for one, to, scale in zip(*(each.split(_ROUNDED) for each in (weight, whole, scales)), strict=True):
        exact = one.to(torch.float32)
        scale.copy_(exact.abs().amax(1).clamp_min_(_LEAST).div_(MOST))
        to.copy_((exact / scale[:, None]).round_())
    return Rounded(whole, scales)


def int8_copy(
    model: nn.Module, find_parts: Callable[[Any], Collection[nn.Module]], keep: Keep | None = None
) -> ExactModel:
    """Return a copy of a model whose linear layers are products of int8, in the parts that `find_parts` finds in it.

    `keep` finds or makes the rounded weights by name, if they are kept. UserError if the model is not whole on a CPU,
    or its weights are already quantised.
    """

    def make(groups: Mapping[str, Sequence[Any]]) -> Iterator[Sequence[nn.Module]]:
        kept = None if keep is None else _kept(groups, keep)
        for place, layers in groups.items():
            fields = [f"{place}.{field}" for field in Rounded._fields]
            yield int8_layers(
                layers, rounded=None if kept is None else Rounded(*map(kept.__getitem__, fields))
            )

    return exact_copy(model, find_parts, make)


def _kept(groups: Mapping[str, Sequence[Any]], keep: Keep) -> Mapping[str, Tensor] | None:
    """Return the fields of the rounded weights of groups of layers, by names that begin with the groups'."""
    layout = dict[str, Tensor]()
    for place, layers in groups.items():
        size = [len(weight) for weight in map(weight_of, layers)]
        layout[f"{place}.whole"] = torch.empty(
            sum(size), weight_of(layers[0]).shape[1], dtype=torch.int8, device="meta"
        )
        layout[f"{place}.scales"] = torch.empty(sum(size), dtype=torch.float32, device="meta")

    @lru_cache(maxsize=1)
    def rounded(place: str) -> Rounded:
        return _rounded(joined_weight(groups[place]))

    return keep(layout, lambda name: getattr(rounded(name.rpartition(".")[0]), name.rpartition(".")[2]))


def int8_layers(
    layers: Sequence[Any], fine: bool = False, rounded: Rounded | None = None
) -> list[ExactLayer]:
    """Return int8 layers for layers that read the same input, whose weights are `rounded` already if that is given."""
    product = Int8Product(joined_weight(layers) if rounded is None else rounded, fine, joined_bias(layers))
    return exact_layers(layers, product)


def int8_head(layer: nn.Linear) -> Any:
    """Return a draft's lm_head with int8 weights if that is faster, else the layer itself.

    A large one gets products of int8, where they are exact: they read its weights once for any number of rows.
    """
    large = _LARGE <= layer.weight.numel() <= MAX_INT8_BYTES and may_replace(layer.weight)
    if large and type(layer) in (nn.Linear, FastLinear) and "forward" not in vars(layer) and sums_are_exact():
        return int8_layers([layer])[0]
    return int8_linear(layer)


class _Noise:
    """A product that measures how much of its outputs' lengths rounding rows to eight bits loses, on average."""

    def __init__(self, product: Any):
        self.product, self._shares = product, list[Tensor]()

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        self.product.fine = True
        fine = self.product(rows)
        self.product.fine = False
        rounded = self.product(rows)
        lost = (rounded - fine).square().sum(1)
        if self.product.bias is not None:
            fine = fine - self.product.bias
        self._shares.append((lost / fine.square().sum(1).clamp_min_(_LEAST)).sqrt_())
        return rounded.to(dtype)

    @property
    def mean(self) -> float:
        """Return the mean over all rows; 0 without any."""
        return float(torch.cat(self._shares).mean()) if self._shares else 0.0


def refine(rounded: ExactModel, run: Callable[[], Tensor]) -> None:
    """Let the products whose rows have outliers in a run of the model round rows to fifteen bits, and only these.

    `run` returns logits [1, T, V]. How loud an outlier must be is tried, by what the run's distributions are with
    fifteen bits in all products.
    """
    shared = rounded.products
    noises = [_Noise(one.product) for one in shared]
    for one, noise in zip(shared, noises, strict=True):
        one.product = noise
    try:
        run()
    finally:
        for one, noise in zip(shared, noises, strict=True):
            one.product = noise.product
            noise.product.fine = True
    expected = run().float().log_softmax(-1)
    for loud in _LOUD:
        for noise in noises:
            noise.product.fine = noise.mean > loud
        if not loud or _divergence(expected, run().float().log_softmax(-1)) <= _CHANGED:
            return


def _divergence(expected: Tensor, found: Tensor) -> float:
    """Return how far log-probabilities [1, T, V] are from the expected ones, per token, in nats."""
    return float((expected.exp() * (expected - found).nan_to_num(0.0)).sum(-1).mean())


def check_processor(device: torch.device) -> None:
    """Raise UserError if there are no exact products of int8 on a device."""
    if device.type != "cpu":
        raise UserError("int8 weights need a CPU; leave --weights out, or choose the device cpu")
    if not sums_are_exact():
        raise UserError("this processor's int8 products are not exact; leave int8 weights out")
