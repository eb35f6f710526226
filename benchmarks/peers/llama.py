"""llama.cpp by its Python package llama-cpp-python. It decodes one text at a time."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.peer import Peer, Settings, mark, perplexity_of, serve

_LOOKUP_TOKENS = 2  # its documentation's number for CPUs


class LlamaCpp(Peer):
    """The GGUF file as it is, or requantized to Q8_0; the perplexity is that of a second context."""

    batches = False
    packages = ("llama-cpp-python",)

    def __init__(self, settings: Settings) -> None:
        lookup = (
            LlamaPromptLookupDecoding(num_pred_tokens=_LOOKUP_TOKENS) if settings.method == "lookup" else None
        )
        self._settings = settings
        self._model = self._load(settings.max_length, draft_model=lookup)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        (prompt,), text = prompts, list[int]()
        self._model.reset()  # what it remembers of a prompt would not be computed again
        for token in self._model.generate(prompt, temp=0.0, repeat_penalty=1.0):
            text.append(token)
            if token in self._settings.eos or len(text) >= max_new_tokens:
                break
        return [text]

    def perplexity(self, tokens: list[int]) -> float:
        model = self._load(len(tokens), logits_all=True)
        model.eval(tokens)
        logits = np.asarray(model.scores[: len(tokens) - 1], np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
        return perplexity_of((chosen - np.log(np.exp(logits).sum(-1))).tolist())

    def _load(self, length: int, **options: object) -> llama_cpp.Llama:
        # Its default is half of the threads.
        options["n_threads"] = options["n_threads_batch"] = self._settings.threads
        return llama_cpp.Llama(str(_file(self._settings)), n_ctx=length, verbose=False, **options)


def _file(settings: Settings) -> Path:
    given = Path(settings.gguf)
    if settings.weights != "Q8_0":
        return given
    return Path(settings.made) / f"{given.stem}-{mark(settings.gguf)}-Q8_0.gguf"


def prepare(settings: Settings) -> None:
    """Requantize the file to Q8_0."""
    file = _file(settings)
    if file.is_file() or settings.weights != "Q8_0":
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True
    params.nthread = settings.threads
    partial = file.with_suffix(".partial")
    if llama_cpp.llama_model_quantize(settings.gguf.encode(), str(partial).encode(), params):
        raise RuntimeError(f"llama_model_quantize cannot make {file.name}")
    partial.rename(file)


if __name__ == "__main__":
    serve(LlamaCpp, prepare)
