"""Processors of the caller's own: functions of a text and the scores of what may follow it.

Shapes: B batch, N tree nodes, P nodes of one depth, A tokens committed in one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.sampling.params import Process, SamplingParams
from clover.tree import TokenTree


class Processors:
    """Runs `SamplingParams.process` of each sequence that has one, at every node on the text that leads to it.

    The host keeps the texts of these sequences. It waits for the device once per step to read what was committed.
    """

    def __init__(self, params: Sequence[SamplingParams], prompts: Sequence[Sequence[int]]) -> None:
        self._configure(params)
        self._texts = [
            list(prompt) if row.process else [] for row, prompt in zip(params, prompts, strict=True)
        ]

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        self._params = params
        self.active = any(row.process is not None for row in params)

    def apply(self, scores: Tensor, tree: TokenTree) -> Tensor:
        """Return scores [B, N, V] as the functions leave them.

        Nodes that cannot be accepted, and those below them, are passed over: functions may know no such texts.
        """
        scores = scores.clone()
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        for row, (params, text) in enumerate(zip(self._params, self._texts, strict=True)):
            if params.process is not None:
                _process(params.process, text, scores[row], parents[row], tokens[row])
        return scores

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        if self.active:
            for text, new, count in zip(self._texts, tokens.tolist(), counts.tolist(), strict=True):
                text += new[:count]

    def select(self, rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
        """Keep these sequences, in this order; `params` are those of the kept rows."""
        self._configure(params)
        self._texts = [self._texts[row] for row in rows]

    def insert(self, other: Processors, params: Sequence[SamplingParams]) -> None:
        """Add the sequences of another batch after the present ones; `params` are those of all."""
        self._configure(params)
        self._texts += other._texts


def _process(
    process: Process, text: list[int], scores: Tensor, parents: list[int], tokens: list[int]
) -> None:
    """Change the scores [N, V] of one tree in place, depth by depth; its root is the end of the text."""
    paths, nodes = {0: text}, [0]
    while nodes:
        leading = torch.tensor([paths[node] for node in nodes], device=scores.device)
        scores[nodes] = process(leading, scores[nodes]).to(scores.dtype)
        below = [node for node, parent in enumerate(parents) if parent in nodes]
        above = [parents[node] for node in below]
        possible = _possible(scores[above], [tokens[node] for node in below])
        nodes = [node for node, may_follow in zip(below, possible, strict=True) if may_follow]
        paths = {node: [*paths[parents[node]], tokens[node]] for node in nodes}


def _possible(scores: Tensor, tokens: list[int]) -> list[bool]:
    """Return whether each of P tokens may be chosen by its row of scores [P, V]; where all are -inf, any may be."""
    own = scores.gather(1, torch.tensor(tokens, dtype=torch.long, device=scores.device).unsqueeze(1))
    excluded = own == -torch.inf
    return (~excluded | (scores == -torch.inf).all(1, keepdim=True)).squeeze(1).tolist()
