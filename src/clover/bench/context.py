"""What a decoding step costs against the length of the context, up to 32 k tokens, on a small model.

The model has random weights and the context is random, too: neither changes what a step costs. Keys and values are put
into the target's cache directly, the draft takes its positions in as ever, and the engine goes on from there as it does
in a conversation. A straight line is fitted to the cost; how far the points lie from it says whether it grows linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from clover.bench.methods import OWN_TREE, PLAIN
from clover.drafts import Clover2Draft
from clover.engine import Engine, PhaseClock, PrefixCache, Request
from clover.evaluate.progress import EvaluationProgress
from clover.interleaved import take_turns, wait_for
from clover.target import TargetModel
from clover.target.loading import resolve_device, resolve_dtype

CONTEXTS = (1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768)
_CHUNK, _NEW_TOKENS = 512, 24
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
        deviation: the largest distance of a point from the line, over the line.
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

        >>> curve = Curve.fit("plain", [1000, 2000, 4000], [0.003, 0.004, 0.006])
        >>> round(curve.slope * 1e6, 9), round(curve.intercept, 9), round(curve.deviation, 9)
        (1.0, 0.002, 0.0)
        """
        x, y = (torch.tensor(values, dtype=torch.float64) for values in (contexts, seconds))
        columns = torch.stack((x, torch.ones_like(x)), dim=1) / y[:, None]
        slope, intercept = torch.linalg.lstsq(columns, torch.ones_like(y)[:, None]).solution[:, 0].tolist()
        line = slope * x + intercept
        deviation = float(((y - line) / line).abs().max())
        return cls(method, tuple(contexts), tuple(seconds), slope, intercept, deviation)


@dataclass(frozen=True)
class Curves:
    """The curves, and on what they were measured."""

    device: torch.device
    dtype: str
    model: str
    curves: tuple[Curve, ...]


def measure_context(
    device: str | None,
    dtype: str | None,
    rounds: int,
    progress: EvaluationProgress,
    contexts: Sequence[int] = CONTEXTS,
) -> Curves:
    """Measure plain and speculative steps at each context, in turn.

    Args:
        rounds: at each context; the median counts.

    Raises:
        UserError: the device or the dtype cannot be used.
    """
    progress.say("a small model")
    progress.begin(len(contexts) * rounds)
    target = _random_target(resolve_device(device), dtype, contexts[-1] + _ROOM)
    draft: Any = Clover2Draft.from_target(target, num_augmenting_layers=1)
    draft = draft.to(target.dtype).bind(target).eval()
    text = _LongText(target, draft, contexts[-1] + _ROOM)
    engines = {PLAIN: Engine(target), OWN_TREE: Engine(target, draft)}
    found: dict[str, list[float]] = {name: [] for name in engines}
    for context in contexts:
        progress.say(f"context {context:,}")
        text.grow(context)
        times: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(rounds + 1):  # the first one warms up
            for name in take_turns(list(engines), turn):
                times[name].append(text.step_seconds(engines[name], context))
            progress.advance(min(turn, 1))
        for name, values in times.items():
            found[name].append(median(values[1:]))
    curves = tuple(Curve.fit(name, contexts, values) for name, values in found.items())
    described = f"Llama, {target.num_layers} layers, width {target.hidden_size}, random weights"
    return Curves(target.device, str(target.dtype).removeprefix("torch."), described, curves)


class _LongText:
    """A random text in the caches of target and draft."""

    def __init__(self, target: TargetModel, draft: Clover2Draft, capacity: int):
        self.target, self.draft = target, draft
        generator = torch.Generator().manual_seed(0)
        self.tokens: list[int] = torch.randint(_VOCABULARY, (capacity,), generator=generator).tolist()
        self.cache, self.session = target.new_cache(1, capacity), draft.new_session(1, capacity)

    @torch.inference_mode()
    def grow(self, context: int) -> None:
        """Put random keys, values and hidden states in, up to so many tokens."""
        while (length := self.cache.lengths[0]) < context:
            size = min(_CHUNK, context - length)
            self.cache.begin(size)
            for layer in range(self.target.num_layers):
                keys, values = (
                    self._random_like(part[layer], size) for part in (self.cache.keys, self.cache.values)
                )
                self.cache.update(keys, values, layer)
            self.cache.commit([size])
            hidden = torch.randn(1, size, self.target.hidden_size, device=self.target.device).to(
                self.target.dtype
            )
            after = torch.tensor([self.tokens[length + 1 : length + 1 + size]], device=self.target.device)
            self.session.commit(hidden, after, [size])

    def step_seconds(self, engine: Engine, context: int) -> float:
        """Mean seconds of a decoding step from `context` tokens on."""
        session = None if engine.draft is None else self.session
        prefix = PrefixCache(self.tokens[:context], self.cache, session)
        clock = PhaseClock(synchronize=True)
        request = Request(tuple(self.tokens[: context + 1]), _NEW_TOKENS, eos=())
        for _ in engine.run([request], clock, prefix):
            pass
        wait_for(self.target.device)
        self.cache.crop([min(context, self.cache.lengths[0])])
        self.session.crop([min(context, self.session.lengths[0])])
        return clock.decoding_seconds / clock.steps

    def _random_like(self, layer: Tensor, size: int) -> Tensor:
        """[1, Hkv, size, D] for a layer's [1, Hkv, S, D]."""
        shape = (1, layer.shape[1], size, layer.shape[3])
        return torch.randn(shape, device=layer.device).to(layer.dtype)


def _random_target(device: torch.device, dtype: str | None, positions: int) -> TargetModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    kind = resolve_dtype(dtype, device)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=kind)
    return TargetModel(model.to(device))
