"""transformers' own `generate` on the engine's requests, as something to compare with, on the target's model object.

Greedy texts are what plain decoding writes; sampled ones come from another random number generator, and can be compared
in distribution only.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from clover.engine import PhaseClock, Request
from clover.measure.timing import Run, wait_for
from clover.metrics import Acceptance
from clover.target import TargetModel


@dataclass(frozen=True, eq=False)
class TransformersGenerate:
    """Decode a batch with transformers, as a `Decode` of `clover.measure.timing`; plainly by default.

    `lookup_tokens` are those that prompt lookup proposes per step, `assistant` is a model that drafts.
    """

    target: TargetModel
    lookup_tokens: int | None = None
    assistant: PreTrainedModel | None = None

    @property
    def one_row_only(self) -> bool:
        """Return whether transformers refuses batches."""
        return self.lookup_tokens is not None or self.assistant is not None

    def __call__(self, batch: Sequence[Request]) -> Run:
        """Decode requests of equal temperature and ends; of the rest only numbers of tokens and the seed are read."""
        device = self.target.device
        longest = max(len(request.prompt) for request in batch)
        padding = [[0] * (longest - len(request.prompt)) for request in batch]
        tokens = [[*pad, *request.prompt] for pad, request in zip(padding, batch, strict=True)]
        mask = [[*pad, *[1] * len(request.prompt)] for pad, request in zip(padding, batch, strict=True)]
        streamer = _StepCounter() if self.one_row_only else None
        options = {"streamer": streamer} if streamer else {}
        options |= {"assistant_model": self.assistant} if self.assistant else {}
        torch.manual_seed(batch[0].params.seed)
        wait_for(device)
        started = time.perf_counter()
        generate: Any = self.target.model.generate
        output = generate(
            torch.tensor(tokens, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=self._config(batch),
            **options,
        )
        written = output[:, longest:].tolist()
        seconds = time.perf_counter() - started
        texts = tuple(self._text(row, request) for row, request in zip(written, batch, strict=True))
        histogram = streamer.histogram if streamer else [sum(map(len, texts))]
        return Run(texts, seconds, Acceptance(histogram=histogram), PhaseClock())

    def _config(self, batch: Sequence[Request]) -> GenerationConfig:
        temperature = batch[0].params.temperature
        eos = self._ends(batch[0])
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(
            max_new_tokens=max(request.max_new_tokens for request in batch),
            num_beams=1,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=eos,
            pad_token_id=eos[0] if eos else 0,
            use_cache=True,
            prompt_lookup_num_tokens=self.lookup_tokens,
            **(sampling if temperature else {"do_sample": False}),
        )

    def _text(self, row: Sequence[int], request: Request) -> tuple[int, ...]:
        """Return the new tokens of a row, up to where it ends; an end-of-sequence token is the last of them."""
        eos = self._ends(request)
        ends = [at for at, token in enumerate(row) if token in eos]
        return tuple(row[: min([request.max_new_tokens, *(at + 1 for at in ends[:1])])])

    def _ends(self, request: Request) -> list[int]:
        """Return the tokens that end the text; an empty list, unlike None, replaces the model's own."""
        return list(self.target.eos_token_ids if request.eos is None else request.eos)


class _StepCounter(BaseStreamer):
    """Counts how many tokens each step wrote; `histogram[n]` steps wrote n + 1."""

    def __init__(self) -> None:
        self.histogram: list[int] = []
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        count = value.numel()
        if self._prompt_seen and count:
            self.histogram.extend([0] * (count - len(self.histogram)))
            self.histogram[count - 1] += 1
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is left to be counted."""
