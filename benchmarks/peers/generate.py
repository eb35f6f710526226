"""transformers' own `generate`: plain, with prompt lookup, or assisted by a small model."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from benchmarks.peers.peer import Peer, Settings, perplexity_of, serve

_LOOKUP_TOKENS = 10  # the number in its documentation


class Generate(Peer):
    """The model in bfloat16; prompts of a batch are padded on the left. Lookup and assistance refuse batches."""

    packages = ("torch", "transformers")

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads)
        self.batches = settings.method == "plain"
        self._settings, self._model = settings, _load(settings.target)
        self._options = (
            {"assistant_model": _load(settings.assistant)} if settings.method == "assisted" else {}
        )

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        padding = [[0] * (longest - len(prompt)) for prompt in prompts]
        tokens = [[*pad, *prompt] for pad, prompt in zip(padding, prompts, strict=True)]
        mask = [[*pad, *[1] * len(prompt)] for pad, prompt in zip(padding, prompts, strict=True)]
        eos = list(self._settings.eos)
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=eos[0],
            prompt_lookup_num_tokens=_LOOKUP_TOKENS if self._settings.method == "lookup" else None,
        )
        output = self._model.generate(
            torch.tensor(tokens), attention_mask=torch.tensor(mask), generation_config=config, **self._options
        )
        return output[:, longest:].tolist()

    @torch.no_grad()
    def perplexity(self, tokens: list[int]) -> float:
        text = torch.tensor([tokens])
        logits = self._model(text).logits[0, :-1].float()
        return perplexity_of(logits.log_softmax(-1).gather(1, text[0, 1:, None]).flatten().tolist())


def _load(place: str) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).eval()
    # Its recommendations for sampling, and a penalty, would change what greedy decoding writes.
    model.generation_config = GenerationConfig()
    return model


if __name__ == "__main__":
    serve(Generate)
