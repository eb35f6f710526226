"""Stage `profile`: which operators a step spends its time in, and how long the GPU waits between kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.lab.shapes import layers_that_fit, random_pair, step_request
from benchmarks.lab.sizes import Shape
from benchmarks.lab.workplace import Workplace
from clover.drafting import StaticTree
from clover.engine import Engine, Request
from clover.files import write_text
from clover.tree import CLOVER2_TREE

_ROWS, _LONGEST_GAPS = 20, 10
_MICROSECONDS = 1e3  # per millisecond


def profile_steps(place: Workplace) -> None:
    """Profile plain and speculative steps of every shape; a text file each."""
    for shape in place.sizes.shapes:
        path = place.result(f"profile-{shape.name}.txt")
        if not path.exists():
            place.check_time()
            place.say(f"profile: {shape.name}")
            write_text(path, _profile(place, shape))


def describe_gaps(spans: Sequence[tuple[float, float]], steps: int) -> str:
    """Return the time between kernels.

    Args:
        spans: start and end of each kernel in microseconds.
        steps: decoding steps that they belong to.

    >>> print(describe_gaps([(0, 10), (5, 20), (50, 60)], 2))
    3 kernels, 1.5 per step; busy 0.030 ms of 0.060 ms (50%)
    longest gaps, ms: 0.030
    """
    ordered = sorted(spans)
    busy, gaps, end = 0.0, [], ordered[0][0]
    for start, stop in ordered:
        if start > end:
            gaps.append(start - end)
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    whole = end - ordered[0][0]
    longest = " ".join(f"{gap / _MICROSECONDS:.3f}" for gap in sorted(gaps, reverse=True)[:_LONGEST_GAPS])
    return (
        f"{len(ordered)} kernels, {len(ordered) / steps:.1f} per step; busy {busy / _MICROSECONDS:.3f} ms of "
        f"{whole / _MICROSECONDS:.3f} ms ({busy / whole:.0%})\nlongest gaps, ms: {longest or 'none'}"
    )


def _profile(place: Workplace, shape: Shape) -> str:
    layers = layers_that_fit(place, shape)
    parts = [
        json.dumps(place.origin(), ensure_ascii=False),
        f"{shape.name}: {layers} of {shape.layers} layers, random weights, batch 1, after {place.sizes.context} tokens",
    ]
    with random_pair(place, shape, layers, place.sizes.draft_vocabularies[-1]) as (target, draft):
        request = step_request(place, target)
        parts += ["", "== plain decoding", _summary(place, Engine(target), request)]
        parts += [
            "",
            "== speculative decoding",
            _summary(place, Engine(target, draft, StaticTree(CLOVER2_TREE)), request),
        ]
    return "\n".join(parts) + "\n"


def _summary(place: Workplace, engine: Engine, request: Request) -> str:
    """Return the steps after the first one, which holds the prefill."""
    cuda = place.device.type == "cuda"
    for _ in engine.run([request]):
        pass
    events = engine.run([request])
    next(events)
    steps = 0
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiler:
        for _ in events:
            steps += 1
    key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=key, row_limit=_ROWS, max_name_column_width=60)
    spans = _kernels(profiler.events()) if cuda else []
    gaps = describe_gaps(spans, steps) if spans else "no GPU: no gaps between kernels"
    return f"{steps} steps\n{gaps}\n{table}"


def _kernels(events: Any) -> list[tuple[float, float]]:
    on_gpu = (event for event in events if event.device_type == torch.autograd.DeviceType.CUDA)
    return [(event.time_range.start, event.time_range.end) for event in on_gpu]
