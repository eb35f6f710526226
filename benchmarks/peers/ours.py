"""Our engine. The tree of "draft" is auto; a method that is none of the known names is a tree, such as clover2."""

from __future__ import annotations

from typing import Any

import torch

import clover
from benchmarks.peers.peer import Peer, Settings, perplexity_of, serve
from clover.options import set_threads

_TREES = {"draft": "auto"}
_CHUNK = 128  # tokens of the text whose logits lie in memory


class Ours(Peer):
    """`clover.load` and `generate`."""

    batches = True
    packages = ("torch", "transformers")

    def __init__(self, settings: Settings) -> None:
        set_threads(settings.threads)
        tree, options = _TREES.get(settings.method, settings.method), dict[str, Any]()
        if settings.weights != "bf16":
            options["weights"] = settings.weights
        if settings.method not in ("plain", "lookup"):
            options["draft"] = settings.draft
        self._model = clover.load(settings.target, tree=tree, dtype="bfloat16", **options)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        made = self._model.generate(prompts, max_new_tokens=max_new_tokens, batch_size=len(prompts))
        return [list(one.tokens) for one in made]

    def perplexity(self, tokens: list[int]) -> float:
        session, found = self._model.target.open(1, len(tokens)), list[float]()
        for at in range(0, len(tokens) - 1, _CHUNK):
            piece = torch.tensor([tokens[at : at + _CHUNK]])
            logits = session.run(piece).logits
            session.commit([piece.shape[1]])
            following = torch.tensor(tokens[at + 1 : at + 1 + _CHUNK])
            chosen = logits[0, : len(following)].float().log_softmax(-1).gather(1, following[:, None])
            found += chosen.flatten().tolist()
        return perplexity_of(found)


if __name__ == "__main__":
    serve(Ours)
