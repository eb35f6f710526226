"""Processors of the caller's own: functions of a text and the scores of what may follow it.

Shapes: B batch, N tree nodes, P nodes of one depth, A tokens committed in one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.sampling.params import SamplingParams
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
        """Scores [B, N, V] as the functions leave them."""
        scores = scores.clone()
        depths, parents, tokens = tree.depths.tolist(), tree.parents.tolist(), tree.tokens.tolist()
        for row, (params, text) in enumerate(zip(self._params, self._texts, strict=True)):
            if params.process is None:
                continue
            paths: list[list[int]] = []
            for parent, token in zip(parents[row], tokens[row], strict=True):
                paths.append([*paths[parent], token] if parent >= 0 else text)
            for depth in sorted(set(depths[row])):
                nodes = [node for node, its_depth in enumerate(depths[row]) if its_depth == depth]
                leading = torch.tensor([paths[node] for node in nodes], device=scores.device)
                scores[row, nodes] = params.process(leading, scores[row, nodes]).to(scores.dtype)
        return scores

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        if self.active:
            for text, new, count in zip(self._texts, tokens.tolist(), counts.tolist(), strict=True):
                text += new[:count]

    def select(self, rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
        """Keep these sequences, in this order; their parameters are given anew."""
        self._configure(params)
        self._texts = [self._texts[row] for row in rows]

    def insert(self, other: Processors, params: Sequence[SamplingParams]) -> None:
        """Take in the sequences of another batch behind the own ones; the parameters are those of all."""
        self._configure(params)
        self._texts += other._texts
