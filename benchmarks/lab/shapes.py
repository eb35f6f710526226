"""Stage `shapes`: what steps of large models cost, and whether that is what the hardware costs.

The weights are random, so the draft is never right. Where a model does not fit, fewer layers are run. The time of the
rest is added layer by layer; such lines say so.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.lab.sizes import Shape
from benchmarks.lab.workplace import Workplace
from clover.drafting import StaticTree
from clover.drafts import Clover2Draft
from clover.engine import Engine, Request
from clover.errors import one_line
from clover.measure.ceilings import Limits, measure_limits
from clover.measure.speed import step_seconds
from clover.measure.timing import time_decoding
from clover.target import TargetModel
from clover.tree import CLOVER2_TREE

LINES = "shapes.jsonl"
KEY = ("shape", "draft_vocabulary", "compiled")
BARS = {
    "plain_over_bandwidth": 1.25,
    "verify_over_plain": 1.10,
    "draft_over_plain": 0.15,
    "step_over_plain": 1.3,
}
_USABLE = 0.8  # of the memory; the rest is for the draft, the cache and the ceilings
_MINUTE = 60.0


@dataclass(frozen=True)
class Steps:
    """Seconds of a decoding step, batch 1.

    Args:
        plain: a whole plain step.
        verify, draft: of a speculative step, the pass over root and 25 draft tokens and the drafting.
        step: a whole speculative step.
    """

    plain: float
    verify: float
    draft: float
    step: float

    def with_layers_added(self, fewer: Steps, per: int, missing: int) -> Steps:
        """Return the times of a model with `missing` layers more, where `fewer` are those with `per` layers less.

        A draft does not get slower with the target's layers.

        >>> Steps(4.0, 5.0, 1.0, 7.0).with_layers_added(Steps(3.0, 4.0, 1.0, 6.0), per=2, missing=4)
        Steps(plain=6.0, verify=7.0, draft=1.0, step=9.0)
        """
        grown = {
            name: value + missing * (value - getattr(fewer, name)) / per
            for name, value in asdict(self).items()
            if name != "draft"
        }
        return replace(self, **grown)


@dataclass(frozen=True)
class Variant:
    """One line of results: a shape with a draft of so many tokens, eager or compiled."""

    shape: Shape
    draft_vocabulary: int | None
    compiled: bool

    @property
    def key(self) -> dict[str, Any]:
        """What names the line."""
        size = self.draft_vocabulary or self.shape.vocabulary
        return dict(zip(KEY, (self.shape.name, size, self.compiled), strict=True))


def time_shapes(place: Workplace) -> None:
    """Time every shape with every draft vocabulary; a line each, and none twice."""
    for compiled in (False, True) if place.compiled else (False,):
        for shape in place.sizes.shapes:
            for vocabulary in place.sizes.draft_vocabularies:
                variant = Variant(shape, vocabulary, compiled)
                done = place.lines(LINES)
                if not any(all(line[name] == v for name, v in variant.key.items()) for line in done):
                    place.check_time(_MINUTE if place.device.type == "cuda" else 0.0)
                    place.say(f"shapes: {variant.key}")
                    place.add_line(LINES, _measure(place, variant))


def bars(steps: Steps, least_seconds: float) -> dict[str, dict[str, float | bool]]:
    """Each ratio beside the most that it should be.

    Args:
        least_seconds: for reading the weights once.

    >>> found = bars(Steps(plain=1.0, verify=1.2, draft=0.1, step=1.4), 0.9)
    >>> [(name, one["met"]) for name, one in found.items()][:3]
    [('plain_over_bandwidth', True), ('verify_over_plain', False), ('draft_over_plain', True)]
    """
    ratios = {
        "plain_over_bandwidth": steps.plain / least_seconds,
        "verify_over_plain": steps.verify / steps.plain,
        "draft_over_plain": steps.draft / steps.plain,
        "step_over_plain": steps.step / steps.plain,
    }
    return {name: {"ratio": r, "most": BARS[name], "met": r <= BARS[name]} for name, r in ratios.items()}


@contextmanager
def random_pair(
    place: Workplace, shape: Shape, layers: int, draft_vocabulary: int | None
) -> Iterator[tuple[TargetModel, Clover2Draft]]:
    """Yield a target of the shape and a Clover-2 draft for it, made on the device; freed at the end."""
    torch.manual_seed(0)
    room = place.sizes.context + place.sizes.steps + 64
    with torch.device(place.device):
        model = AutoModelForCausalLM.from_config(
            shape.config(layers, room), attn_implementation="sdpa", dtype=place.dtype
        )
    target = TargetModel(model)
    size = None if draft_vocabulary is None else min(draft_vocabulary, shape.vocabulary)
    draft = Clover2Draft.from_target(target, num_augmenting_layers=1, draft_vocab_size=size)
    try:
        yield target, draft.to(place.dtype).bind(target).eval()
    finally:
        del model, target, draft
        torch._dynamo.reset()  # what was compiled for the pair holds memory of the device
        gc.collect()
        if place.device.type == "cuda":
            torch.cuda.empty_cache()


def layers_that_fit(place: Workplace, shape: Shape) -> int:
    """As many as the device has room for, and no more than the sizes allow."""
    layers = min(shape.layers, place.sizes.most_layers or shape.layers)
    if place.device.type == "cuda":
        free = _USABLE * torch.cuda.mem_get_info(place.device)[0] / place.dtype.itemsize
        layers = min(layers, int((free - 2 * shape.head_parameters) / shape.layer_parameters))
    return max(layers, 2)


def _measure(place: Workplace, variant: Variant) -> dict[str, Any]:
    shape, layers = variant.shape, layers_that_fit(place, variant.shape)
    line: dict[str, Any] = variant.key | {
        "layers": shape.layers,
        "layers_run": layers,
        "layers_scaled": layers < shape.layers,
        "nodes": len(CLOVER2_TREE.parents),
        "context": place.sizes.context,
    }
    try:
        steps, limits = _times(place, variant, layers)
        if layers < shape.layers:
            fewer, _ = _times(place, variant, layers // 2)
            steps = steps.with_layers_added(fewer, layers - layers // 2, shape.layers - layers)
    except (RuntimeError, TypeError, AssertionError) as error:
        if not variant.compiled:
            raise
        return line | {"failed": f"torch.compile: {one_line(error)}"}
    missing = shape.layer_parameters * (shape.layers - layers) * place.dtype.itemsize
    weight_bytes = limits.weight_bytes + missing
    least = weight_bytes / limits.bytes_per_second
    return line | {
        "milliseconds": {name: 1e3 * value for name, value in asdict(steps).items()},
        "weight_bytes": weight_bytes,
        "bytes_per_second": limits.bytes_per_second,
        "flops_per_second": limits.flops_per_second,
        "least_plain_milliseconds": 1e3 * least,
        "bars": bars(steps, least),
    }


def _times(place: Workplace, variant: Variant, layers: int) -> tuple[Steps, Limits]:
    with random_pair(place, variant.shape, layers, variant.draft_vocabulary) as (target, draft):
        request = step_request(place, target)
        plain = Engine(target, compile=variant.compiled)
        drafted = Engine(target, draft, StaticTree(CLOVER2_TREE), compile=variant.compiled)
        phases = step_seconds([time_decoding(drafted, [request], synchronize=True) for _ in range(2)][1:])
        steps = Steps(
            plain=_step_seconds(plain, request),
            verify=phases["run"],
            draft=phases["draft"],
            step=_step_seconds(drafted, request),
        )
        return steps, measure_limits(target)


def step_request(place: Workplace, target: TargetModel) -> Request:
    """Random tokens, and as many steps as are timed; nothing ends it early."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (place.sizes.context,), generator=generator).tolist()
    return Request(tuple(tokens), place.sizes.steps, eos=())


def _step_seconds(engine: Engine, request: Request) -> float:
    """Median time between the steps of one run, after a run that warms up; each ends when its tokens are known."""
    for _ in engine.run([request]):
        pass
    moments = []
    for _ in engine.run([request]):
        moments.append(time.perf_counter())
    return median(after - before for before, after in pairwise(moments))
