"""The methods that are compared: our engines, and transformers' own `generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from clover.engine import Engine, PhaseClock, Request
from clover.errors import UserError, one_line
from clover.measure.session import AUTO, LOOKUP, OWN, PLAIN, Session
from clover.measure.systems import system_name
from clover.measure.timing import Run, time_decoding, wait_for
from clover.metrics import Acceptance
from clover.target import TargetModel
from clover.target.loading import FAILURES

TRANSFORMERS, TRANSFORMERS_LOOKUP, ASSISTED = "transformers", "prompt lookup", "assisted"
_LABELS = {
    LOOKUP: "prompt lookup (ours)",
    OWN: "own tree",
    TRANSFORMERS_LOOKUP: "transformers' prompt lookup",
    ASSISTED: "transformers' assisted",
}
_LOOKUP_TOKENS = 10  # the number in transformers' own documentation


@dataclass(frozen=True, eq=False)
class TransformersGenerate:
    """transformers' own `generate`, on the engine's requests and the target's model object; by default plain decoding.

    Greedy texts equal those of our plain decoding. Sampled texts come from another random number generator, so only
    their distribution can be compared. If the target runs int8 weights, `generate` still runs the plain ones, whose
    texts differ. `lookup_tokens` is the number of tokens that prompt lookup proposes per step; `assistant` is a model
    that drafts.
    """

    target: TargetModel
    lookup_tokens: int | None = None
    assistant: PreTrainedModel | None = None

    @property
    def one_row_only(self) -> bool:
        """Return whether transformers cannot decode batches."""
        return self.lookup_tokens is not None or self.assistant is not None

    def __call__(self, batch: Sequence[Request]) -> Run:
        """Decode requests of equal temperature and ends; their other sampling options, except the seed, are ignored."""
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
        """Return the new tokens of a row up to its end, which includes an end-of-sequence token."""
        eos = self._ends(request)
        ends = [at for at, token in enumerate(row) if token in eos]
        return tuple(row[: min([request.max_new_tokens, *(at + 1 for at in ends[:1])])])

    def _ends(self, request: Request) -> list[int]:
        """Return the tokens that end the text. An empty list, unlike None, replaces the model's own."""
        return list(self.target.eos_token_ids if request.eos is None else request.eos)


class _StepCounter(BaseStreamer):
    """A counter of the tokens of each step; `histogram[n]` steps wrote n + 1 tokens."""

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
        """Do nothing, because all steps are counted already."""


@dataclass(frozen=True)
class Method:
    """A way to decode, and its name in results."""

    name: str
    way: Engine | TransformersGenerate

    @property
    def label(self) -> str:
        """Return its name in reports."""
        name = _LABELS.get(self.name) or system_name(self.name)
        return f"{name}, plain weights" if self._other_weights else name

    @property
    def _other_weights(self) -> bool:
        """Return whether the method runs other weights than our engines."""
        return isinstance(self.way, TransformersGenerate) and self.way.target.weights is not None

    @property
    def engine(self) -> Engine | None:
        """Return the engine of the method; None for transformers' methods."""
        return self.way if isinstance(self.way, Engine) else None

    def decode(self, batch: Sequence[Request]) -> Run:
        """Decode a batch."""
        return (
            self.way(batch) if isinstance(self.way, TransformersGenerate) else time_decoding(self.way, batch)
        )

    @property
    def drafts(self) -> bool:
        """Return whether a trained draft of this library proposes tokens."""
        return self.engine is not None and self.engine.draft is not None

    @property
    def nodes(self) -> int | None:
        """Return the tokens that every step verifies per text, root included; None if that number differs."""
        return self.engine.policy.max_nodes if self.engine and self.engine.tree.fixed_size else None

    @property
    def one_text_only(self) -> bool:
        """Return whether the method cannot decode batches."""
        return isinstance(self.way, TransformersGenerate) and self.way.one_row_only

    def comparable(self, temperature: float) -> bool:
        """Return whether the method's texts must equal those of plain decoding, token by token."""
        if self.engine is None:
            return temperature == 0 and not self._other_weights
        return temperature == 0 or self.engine.tree.exact


def method_names(trees: Sequence[str], reference: bool, assisted: bool) -> list[str]:
    """Return the names of all methods of a benchmark, plain decoding first.

    >>> method_names(["chain:3"], reference=True, assisted=False)
    ['plain', 'auto', 'own', 'lookup', 'chain:3', 'transformers', 'prompt lookup']
    """
    theirs = [TRANSFORMERS, TRANSFORMERS_LOOKUP] if reference else []
    names = [PLAIN, AUTO, OWN, LOOKUP, *trees, *theirs, *([ASSISTED] if assisted else [])]
    return list(dict.fromkeys(names))


def make_method(name: str, session: Session, assistant: Any = None, compile: bool | str = False) -> Method:
    """Return a method by one of this module's names, or by the name of a tree; UserError if that tree is unknown.

    `assistant` is a transformers model. transformers' methods ignore `compile`.
    """
    if name in (TRANSFORMERS, TRANSFORMERS_LOOKUP, ASSISTED):
        lookup = _LOOKUP_TOKENS if name == TRANSFORMERS_LOOKUP else None
        return Method(
            name, TransformersGenerate(session.target, lookup, assistant if name == ASSISTED else None)
        )
    return Method(name, session.engine(name, compile=compile))


def load_assistant(name: str, target: TargetModel, trust_remote_code: bool) -> Any:
    """Load a small model for assisted generation; UserError if it cannot be loaded or has another vocabulary."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=target.dtype, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    except FAILURES as error:
        raise UserError(f"the assistant {name} cannot be loaded: {one_line(error)}") from error
    if model.config.vocab_size != target.config.vocab_size:
        raise UserError(
            f"the assistant {name} has a vocabulary of {model.config.vocab_size}, the target one of "
            f"{target.config.vocab_size}; transformers needs the same"
        )
    return model.to(target.device).eval()
