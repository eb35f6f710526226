"""OpenVINO GenAI, on models that optimum-intel converts: plain, with prompt lookup, or with a small draft model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.peer import Peer, Settings, mark, perplexity_of, serve

_DRAFTED = 5  # tokens, as in its documentation
_BITS = {"int8": 8, "int4": 4}


class GenAI(Peer):
    """`LLMPipeline` at its defaults. The perplexity is that of the converted model, before what serving changes."""

    batches = True
    packages = ("openvino", "openvino-genai")

    def __init__(self, settings: Settings) -> None:
        self._settings, self._drafts = settings, settings.method != "plain"
        options = {"INFERENCE_NUM_THREADS": settings.threads}
        if settings.method == "lookup":
            options["prompt_lookup"] = True
        elif settings.method == "assisted":
            small = _place(settings, settings.assistant)
            options["draft_model"] = openvino_genai.draft_model(
                small, "CPU", INFERENCE_NUM_THREADS=settings.threads
            )
        self._model = openvino_genai.LLMPipeline(_place(settings, settings.target), "CPU", **options)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = max_new_tokens, False, False
        config.eos_token_id, config.stop_token_ids = self._settings.eos[0], set(self._settings.eos)
        if self._drafts:
            config.num_assistant_tokens = _DRAFTED
        if self._settings.method == "lookup":
            config.max_ngram_size = 3
        longest = max(map(len, prompts))
        tokens, mask = np.zeros((2, len(prompts), longest), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt, 1
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(mask))
        return [list(text) for text in self._model.generate(inputs, config).tokens]

    def perplexity(self, tokens: list[int]) -> float:
        file = Path(_place(self._settings, self._settings.target)) / "openvino_model.xml"
        request = openvino.Core().compile_model(file, "CPU").create_infer_request()
        text = np.array([tokens], np.int64)
        fed = {
            "input_ids": text,
            "attention_mask": np.ones_like(text),
            "position_ids": np.arange(len(tokens))[None],
        }
        found = request.infer(fed | {"beam_idx": np.zeros(1, np.int32)})
        logits = np.asarray(next(iter(found.values()))[0, :-1], np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = logits[np.arange(len(tokens) - 1), tokens[1:]]
        return perplexity_of((chosen - np.log(np.exp(logits).sum(-1))).tolist())


def _place(settings: Settings, model: str) -> str:
    return str(Path(settings.made) / f"{Path(model).name}-{mark(model)}-openvino-{settings.weights}")


def prepare(settings: Settings) -> None:
    """Convert the target, and the small model where it drafts."""
    for model in (settings.target, *([settings.assistant] if settings.method == "assisted" else [])):
        place = Path(_place(settings, model))
        if not place.is_dir():
            _convert(model, place, _BITS[settings.weights])


def _convert(model: str, place: Path, bits: int) -> None:
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    partial = place.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    quantised = OVWeightQuantizationConfig(bits=bits)
    made = OVModelForCausalLM.from_pretrained(
        model, export=True, compile=False, quantization_config=quantised
    )
    made.save_pretrained(partial)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(partial)
    partial.rename(place)


if __name__ == "__main__":
    serve(GenAI, prepare)
