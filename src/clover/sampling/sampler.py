"""Choose the target's own next tokens: apply the logits processors of a batch's sequences, then choose.

The processors are those of transformers, in the same order: logit bias, repetition penalty, banned tokens; then, for
sequences that sample, temperature, top-k, top-p and min-p. Frequency and presence penalties, which transformers lacks,
come after the repetition penalty. Penalties depend on the text and on the path to the node.

Shapes: B batch, N tree nodes, V vocabulary, A tokens committed in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clover.sampling.coupling import Coupling
from clover.sampling.numbers import most_probable
from clover.sampling.params import SamplingParams
from clover.sampling.penalties import Penalties
from clover.sampling.processors import Processors
from clover.sampling.race import winners
from clover.sampling.states import GrammarState
from clover.sampling.warpers import Warpers
from clover.tree import TokenTree


class Sampler(Coupling):
    """The processors of a batch, as tensors with an entry per sequence, and the random numbers of its sequences.

    Args:
        params, prompts: one per sequence; UserError for params that do not fit the vocabulary.
        vocab_size: V, the size of the target's logits.
        device: the device of the logits.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        assert len(params) == len(prompts)
        for row in params:
            row.check_vocabulary(vocab_size)
        super().__init__(params, vocab_size, device)
        self._penalties = Penalties(params, prompts, vocab_size, self._device)
        self._processors = Processors(params, prompts, self._device)

    @property
    def grammar_states(self) -> Sequence[GrammarState | None]:
        """Return each text's grammar state, None for a text without a grammar; empty if no text has one."""
        return self._processors.states if self._processors.has_grammars else ()

    def chosen(self, row: int, tokens: Sequence[int]) -> tuple[int, str]:
        """Return how many of a step's tokens a sequence's processors allow, and why the next one is not allowed."""
        return self._processors.chosen(row, tokens)

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        super()._configure(params)
        biased = any(row.logit_bias or row.banned_tokens for row in params)
        self._bias = self._bias_tensor() if biased else None
        self._warpers = Warpers(params, self._vocab_size, self._device)

    def _bias_tensor(self) -> Tensor:
        """Return logit bias and bans, float64 [B, 1, V]; no penalty can undo a ban."""
        bias = torch.zeros(len(self._params), 1, self._vocab_size, dtype=torch.float64, device="cpu")
        for row, params in enumerate(self._params):
            for token, value in params.logit_bias.items():
                bias[row, 0, token] = value
            bias[row, 0, list(params.banned_tokens)] = -torch.inf
        return bias.to(self._device)

    def choose(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Choose the token that the target itself writes after each node, Long [B, N].

        Waits for the device only if a sequence filters by top-k, top-p or min-p.

        Args:
            logits: [B, N, V], any floating dtype; computation is in float32, or in float64 for float64 logits.
            tree: the tokens of the logits' nodes; `TokenTree.root_only` in plain decoding.

        Below, the second sequence samples at a low temperature with token 1 banned.

        >>> rows = [SamplingParams(), SamplingParams(temperature=0.1, banned_tokens=(1,))]
        >>> sampler = Sampler(rows, prompts=[[0], [0]], vocab_size=3, device="cpu")
        >>> tree = TokenTree.root_only(torch.tensor([[0], [0]]))
        >>> sampler.choose(torch.tensor([[[1.0, 9.0, 5.0]]] * 2), tree)
        tensor([[1],
                [2]])
        """
        if self.takes_most_probable:
            return most_probable(logits)
        scores = self._scores(logits, tree)
        if not self.any_sampled:
            return most_probable(scores)
        warped, tokens = self._warpers.warp(scores)
        if tokens is None and tree.max_depth == 0 and self.draws_alone:
            drawn = winners(warped[:, 0], self._seeds, self._positions, self._rows_greedy).unsqueeze(1)
        else:
            drawn = most_probable(warped + self._gumbels_at(tree, tokens))
        if tokens is not None:
            drawn = tokens.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        return torch.where(self._greedy, most_probable(scores), drawn) if self._any_greedy else drawn

    @property
    def takes_most_probable(self) -> bool:
        """Return True if `choose` is `most_probable`: all sequences are greedy and none has a processor."""
        processed = self._bias is not None or self._penalties.active or self._processors.active
        return not (self.any_sampled or processed)

    def target_probs(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Return the distribution that `choose` draws from, [B, N, V]: one-hot if greedy; at least float32."""
        return self._probs(self._scores(logits, tree))

    def last_probs(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Return `target_probs` of the last node, [B, V], without the work for the other nodes."""
        return self._probs(self._scores(logits, tree)[:, -1:])[:, 0]

    def _probs(self, scores: Tensor) -> Tensor:
        """Return the distributions [B, N, V] of the scores of `_scores`."""
        warped, tokens = self._warpers.warp(scores)
        if tokens is not None:
            warped = torch.full_like(scores, -torch.inf).scatter(-1, tokens, warped)
        probs = warped.softmax(-1)
        if not self._any_greedy:
            return probs
        one_hot = torch.zeros_like(scores).scatter(-1, most_probable(scores).unsqueeze(-1), 1.0)
        return torch.where(self._greedy.unsqueeze(-1), one_hot, probs)

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        super().commit(tokens, counts)
        self._penalties.commit(tokens, counts)
        self._processors.commit(tokens, counts)

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._penalties.select(index, self._params)
        self._processors.select(rows, self._params)

    def insert(self, other: Sampler) -> None:  # type: ignore[override]
        super().insert(other)
        self._penalties.insert(other._penalties, self._params)
        self._processors.insert(other._processors, self._params)

    def _scores(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Apply the processors that greedy sequences need, too: bias, bans, penalties, grammars, and `process`."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._bias is not None:
            scores = scores + self._bias.to(scores.dtype)
        scores = self._penalties.apply(scores, tree)
        return self._processors.apply(scores, tree) if self._processors.active else scores
