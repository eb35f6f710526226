"""Linear layers whose weights and inputs are rounded to int8, with exact sums.

Every row of the input and every output of a weight has a scale. Products of int8 are added as int32, which is exact in
any order. So the result of a row does not depend on the other rows: a token has the same numbers to the last bit in a
plain step, in a tree and in a batch. Rows with outliers are rounded to fifteen bits, and go through the product as two
rows of int8 (docs/int8.md).

Gradients and compilers use the plain weights, which the layers share.

Shapes: R rows, O outputs and I inputs of one layer.
"""

import timeit
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from math import inf
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
from clover.cpu.whole_attention import products_are_exact, trial
from clover.errors import UserError

INT8 = "int8"  # the users' name of these weights
_BLOCK = 192  # rows of int8 in one product; with more, each row takes longer
_ROUNDED = 2048  # outputs whose weights are rounded at once
_WIDEST = 20_480  # most outputs of one product, so that intermediate results stay small
# A product whose rows lose more than a share `_LOUD` of the outputs' length by eight bits gets fifteen. `refine` takes
# the first share that changes the distributions of a text by at most `_CHANGED` nats per token.
_LOUD, _CHANGED = (0.015, 0.01, 0.007, 0.0), 0.004
THRESHOLDS = (*_LOUD, _CHANGED)  # the constants of `refine`
_TRIALS, _SLOWER = 5, 4  # runs of each way to exact sums, and how much slower than the fastest one may be
_LARGE = 2**23  # size of an lm_head for which it pays to round the rows
# A function that finds the tensors of a layout, or makes them by name and stores them; it returns None if it cannot.
Keep = Callable[[Mapping[str, Tensor], Callable[[str], Tensor]], Mapping[str, Tensor] | None]
_LEAST = 1e-30  # the least divisor, for rows and weights that are all zero


def sums_are_exact() -> bool:
    """Return True if this processor has exact products of int8."""
    return _way() is not None


class _Sums:
    """The exact sums of products of int8 rows with an int8 weight, each times the scale of its output."""

    def __init__(self, weight: Tensor, scales: Tensor):
        self.packed = torch.ops.onednn.qlinear_prepack(weight, [1, weight.shape[1]])
        self.scales, self.zeros = scales, scales.new_zeros(len(scales), dtype=torch.int64)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return float32 [R, O] for rows int8 [R, I], between -127 and 127."""
        way = _way()
        assert way is not None, "this processor has no exact sums"
        return way(self, rows)

    def of_signed(self, rows: Tensor) -> Tensor:
        """Return the sums for rows as they are, which AMX and AVX-VNNI-INT8 multiply."""
        return self._multiply(rows, 0)

    def of_shifted(self, rows: Tensor) -> Tensor:
        """Return the sums for rows that are shifted to 0 … 255, because VNNI multiplies no other numbers."""
        return self._multiply(rows.view(torch.uint8).bitwise_xor(128), 128)

    def of_halves(self, rows: Tensor) -> Tensor:
        """Return the sums for rows whose positive and negative numbers are two rows of 0 … 127.

        Without VNNI, pairs of products are added in 16 bits, which larger numbers may overflow.
        """
        halves = torch.cat([rows.clamp(min=0), rows.clamp(max=0).neg_()]).to(torch.uint8)
        sums = self._multiply(halves, 0)
        return sums[: len(rows)].sub_(sums[len(rows) :])

    def _multiply(self, rows: Tensor, zero: int) -> Tensor:
        """Return the sums for rows of int8 or uint8, in which `zero` stands for 0."""
        weight = (self.packed, self.scales, self.zeros, None)
        return torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, zero, *weight, 1.0, 0, torch.float32, "none", [], ""
        )


@lru_cache(maxsize=1)
def _way() -> Callable[[_Sums, Tensor], Tensor] | None:
    """Return the way to exact sums that this processor takes: the first that is not much slower than the fastest.

    oneDNN has every way on every processor, but some only as a loop over single numbers, a thousand times slower.
    Signed and shifted rows have the same sums, so a choice between them changes no text.
    """
    seconds = {way: _seconds(way) for way in (_Sums.of_signed, _Sums.of_shifted, _Sums.of_halves)}
    return next((way for way, one in seconds.items() if one <= _SLOWER * min(seconds.values()) < inf), None)


def _seconds(way: Callable[[_Sums, Tensor], Tensor]) -> float:
    """Return the shortest time of a small product, in seconds, or inf if sums are not exact.

    They are tried with random numbers and with the largest int8 numbers.
    """
    if not torch.backends.mkldnn.is_available():
        return inf
    rows, weight, products = trial(32, 64, 1024)
    sums, expected = _Sums(weight, weight.new_ones(64, dtype=torch.float32)), products.float()
    if not all(torch.equal(way(sums, rows[:count]), expected[:count]) for count in (1, 2, 32)):
        return inf
    return min(timeit.repeat(lambda: way(sums, rows[:2]), number=1, repeat=_TRIALS))


class Rounded(NamedTuple):
    """A weight as integers int8 [O, I] and scales float32 [O]."""

    whole: Tensor
    scales: Tensor


class Int8Product:
    """The product `x Wᵀ + b` of rows x and a weight W [O, I], both rounded to integers.

    Args:
        weight: W in any floating dtype, which is rounded to eight bits with one scale per output; or already rounded.
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
        blocks = -(-len(rows) // most)  # `tensor_split` makes them of nearly equal size
        for inputs, found in zip(rows.tensor_split(blocks), outputs.tensor_split(blocks), strict=True):
            whole, scales = self._whole(inputs)
            biases = repeat(None) if self.bias is None else self.bias.split(self._sizes)
            for part, to, bias in zip(self._parts, found.split(self._sizes, 1), biases, strict=False):
                to.copy_(self._outputs(part, whole, scales, bias))
        return outputs

    def _whole(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [R, I] as int8 [R, I] and scales [R, 1]. Fine rows are [2 R, I]: high parts, then low parts.

        Operators are not fused, here and in `_outputs`, because fused ones may round the end of a row differently.
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
        """Return the outputs float32 [R, O'] of a part of the weight."""
        sums, count = part(whole), len(scales)
        if self.fine:
            sums = sums[count:].add_(sums[:count], alpha=SHIFT)
        outputs = sums.mul_(scales)
        return outputs if bias is None else outputs.add_(bias)


def _rounded(weight: Tensor) -> Rounded:
    """Round a weight [O, I] to int8 with one scale per output, part by part to save memory."""
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

    `keep` finds the rounded weights, or makes and stores them; None to store nothing. UserError if the model is not
    entirely on a CPU, or its weights are already quantized.
    """

    def make(groups: Mapping[str, Sequence[Any]]) -> Iterator[Sequence[nn.Module]]:
        kept = None if keep is None else _kept(groups, keep)
        for place, layers in groups.items():
            fields = [f"{place}.{field}" for field in Rounded._fields]
            yield int8_layers(layers, None if kept is None else Rounded(*map(kept.__getitem__, fields)))

    return exact_copy(model, find_parts, make)


def _kept(groups: Mapping[str, Sequence[Any]], keep: Keep) -> Mapping[str, Tensor] | None:
    """Return the stored fields of the rounded weights, by the groups' names and the fields' names."""
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


def int8_layers(layers: Sequence[Any], rounded: Rounded | None = None) -> list[ExactLayer]:
    """Return int8 layers for layers that read the same input; `rounded` are their weights if already rounded."""
    weight = joined_weight(layers) if rounded is None else rounded
    return exact_layers(layers, Int8Product(weight, bias=joined_bias(layers)))


def int8_head(layer: nn.Linear) -> Any:
    """Return a draft's lm_head with int8 weights if that is faster, otherwise the layer itself.

    A large one gets exact products of int8 if the processor has them, because they read its weights only once.
    """
    large = _LARGE <= layer.weight.numel() <= MAX_INT8_BYTES and may_replace(layer.weight)
    if large and type(layer) in (nn.Linear, FastLinear) and "forward" not in vars(layer) and sums_are_exact():
        return int8_layers([layer])[0]
    return int8_linear(layer)


class _Noise:
    """A product that measures the mean share of its outputs' length that is lost by rounding rows to eight bits."""

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
        """Return the mean over all rows; 0 if there were none."""
        return float(torch.cat(self._shares).mean()) if self._shares else 0.0


def refine(rounded: ExactModel, run: Callable[[], Tensor]) -> None:
    """Let the products whose rows have outliers in a run of the model round rows to fifteen bits.

    `run` returns logits [1, T, V]. The threshold for outliers is the first of `_LOUD` whose distributions are close to
    those with fifteen bits in all products.
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
    """Return the mean divergence of log-probabilities [1, T, V] from the expected ones, in nats per token."""
    return float((expected.exp() * (expected - found).nan_to_num(0.0)).sum(-1).mean())


def slower_ways(weights: str | None) -> str:
    """Return a sentence about the slower ways by which this processor gets exact sums; "" if it needs none."""
    ways = ["each row goes through int8 weights as two"] if weights and _way() is _Sums.of_halves else []
    ways += [] if products_are_exact() else ["attention is computed in float64"]
    if not ways:
        return ""
    return f"sums of int8 can overflow on this processor, so {' and '.join(ways)}, which is slower"


def check_processor(device: torch.device) -> None:
    """Raise UserError if a device has no exact products of int8."""
    if device.type != "cpu":
        raise UserError("int8 weights need a CPU; leave --weights out, or choose the device cpu")
    if not sums_are_exact():
        raise UserError("this processor's int8 products are not exact; leave int8 weights out")
