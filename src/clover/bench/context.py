"""What a decoding step costs against the length of the context, up to 32 k tokens, on a small model.

The model has random weights and the context is random, too: neither changes what a step costs. A straight line is
fitted to the cost; how far the points lie from it says whether it grows linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, LlamaConfig

from clover.bench.methods import OWN_TREE, PLAIN
from clover.drafts import RecallDraft
from clover.engine import Engine, PhaseClock, PrefixCache, Request
from clover.interleaved import take_turns
from clover.report.figure import GREEN, GREY, finish, legend_below, new_figure
from clover.report.progress import Progress
from clover.report.table import Table
from clover.target import TargetModel
from clover.target.loading import resolve_device, resolve_dtype

CONTEXTS = (1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768)
_NEW_TOKENS = 24
_ROOM = 128  # positions after the longest context
_VOCABULARY = 1024


@dataclass(frozen=True)
class Curve:
    """Cost of one method's step against the context.

    Args:
        method: "plain" or "own tree".
        contexts: tokens.
        seconds: of a step at each, median of the rounds.
        slope, intercept: of the line: seconds per token of context, and seconds.
        deviation: the largest distance of a point from the line, divided by the line.
    """

    method: str
    contexts: tuple[int, ...]
    seconds: tuple[float, ...]
    slope: float
    intercept: float
    deviation: float

    @classmethod
    def fit(cls, method: str, contexts: Sequence[int], seconds: Sequence[float]) -> Curve:
        """Fit the line whose relative distances to the points are smallest, in squares.

        >>> Curve.fit("plain", [1000, 2000, 4000], [0.003, 0.004, 0.006]).words
        '2.00 ms + 1.000 ms per 1,000 tokens, off by 0 % at most'
        """
        x, y = np.asarray(contexts, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        slope, intercept = np.polyfit(x, y, 1, w=1 / y).tolist()
        line = slope * x + intercept
        deviation = float(np.abs((y - line) / line).max())
        return cls(method, tuple(contexts), tuple(seconds), slope, intercept, deviation)

    @property
    def words(self) -> str:
        """The fitted line in words."""
        line = f"{1e3 * self.intercept:.2f} ms + {1e6 * self.slope:.3f} ms per 1,000 tokens"
        return f"{line}, off by {100 * self.deviation:.0f} % at most"


def make_target(device: str | None, dtype: str | None, longest: int) -> TargetModel:
    """A small Llama with random weights and room for `longest` tokens of context.

    Raises:
        UserError: the device or the dtype cannot be used.
    """
    where = resolve_device(device)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=longest + _ROOM,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    kind = resolve_dtype(dtype, where)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=kind)
    return TargetModel(model.to(where))


def measure_context(
    target: TargetModel, rounds: int, progress: Progress, contexts: Sequence[int] = CONTEXTS
) -> list[Curve]:
    """Measure plain and speculative steps at each context, in turn.

    Args:
        target: of `make_target`.
        rounds: at each context; the median counts.
    """
    progress.begin(contexts[-1])
    draft: Any = RecallDraft.from_target(target)
    engines = {PLAIN: Engine(target), OWN_TREE: Engine(target, draft.to(target.dtype).bind(target).eval())}
    prefixes = {name: PrefixCache() for name in engines}  # keep what they have read from context to context
    text = torch.randint(_VOCABULARY, (contexts[-1],), generator=torch.Generator().manual_seed(0)).tolist()
    found: dict[str, list[float]] = {name: [] for name in engines}
    for context in contexts:
        progress.say(f"context {context:,}")
        request = Request(tuple(text[:context]), _NEW_TOKENS, eos=())
        times: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(rounds + 1):  # the first one reads the context
            for name in take_turns(list(engines), turn):
                times[name].append(_step_seconds(engines[name], request, prefixes[name]))
        progress.reach(context)
        for name, values in times.items():
            found[name].append(median(values[1:]))
    return [Curve.fit(name, contexts, values) for name, values in found.items()]


def _step_seconds(engine: Engine, request: Request, prefix: PrefixCache) -> float:
    """Mean seconds of the decoding steps after a text."""
    clock = PhaseClock(synchronize=True)
    for _ in engine.run([request], clock, prefix):
        pass
    return clock.decoding_seconds / clock.steps


def context_table(curves: Sequence[Curve]) -> Table:
    """The cost of a step at each context."""
    columns = ("tokens of context", *(f"{curve.method}, ms" for curve in curves))
    rows = [
        (f"{context:,}", *(f"{1e3 * curve.seconds[at]:.2f}" for curve in curves))
        for at, context in enumerate(curves[0].contexts)
    ]
    return Table("Cost of a decoding step", columns, rows, words=0)


def draw_context(curves: Sequence[Curve], title: str, subtitle: str, foot: str) -> Figure:
    """Points as measured, and the line through them."""
    figure = new_figure(8, 5, title, subtitle, foot)
    axes = figure.subplots()
    for curve, colour in zip(curves, (GREY, GREEN), strict=False):
        axes.plot(curve.contexts, [1e3 * s for s in curve.seconds], "o", color=colour, markersize=6)
        ends = (0, curve.contexts[-1])
        line = [1e3 * (curve.intercept + curve.slope * at) for at in ends]
        axes.plot(ends, line, color=colour, linewidth=1.5, label=f"{curve.method}: {curve.words}")
    axes.set_xlabel("tokens of context")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    finish(axes, "Milliseconds per step", "both")
    legend_below(figure, axes)
    return figure
