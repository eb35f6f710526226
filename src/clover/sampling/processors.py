"""Processors that depend on the whole text: grammars, and functions of the caller.

Shapes: B batch, N tree nodes, P nodes of one depth, T tokens of a text, A tokens committed in one step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from clover.errors import UserError
from clover.sampling.params import Process, SamplingParams
from clover.sampling.states import GrammarState
from clover.tree import TokenTree

_NO_TOKEN = "the grammar allows no token whose logit is finite; simplify it"
_SPOILT = "after logits processors, or the function process, all scores are -inf or one is NaN: no token can be chosen"


class Processors:
    """Applies the grammar and then `SamplingParams.process` of each sequence, if it has them, at every node of a tree.

    Texts and states are extended by the committed tokens and never read again. For these tokens the host waits for the
    device once per step.

    Args:
        device: the device of the logits.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
    ) -> None:
        self._configure(params)
        self._texts = [
            _GrowingTokens(prompt, device) if row.process else None
            for row, prompt in zip(params, prompts, strict=True)
        ]
        self.states: list[GrammarState | None] = [row.grammar and row.grammar.fresh() for row in params]
        self._spoilt = set[tuple[int, tuple[int, ...]]]()  # rows, and drafted paths that cannot continue

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        self._params = params
        self.has_grammars = any(row.grammar is not None for row in params)
        self.active = self.has_grammars or any(row.process is not None for row in params)

    def apply(self, scores: Tensor, tree: TokenTree) -> Tensor:
        """Return scores [B, N, V] after grammars and functions.

        Nodes that cannot be accepted, and nodes below them, are skipped, because functions may not support such texts.
        """
        scores = scores.clone()
        parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
        for row, params in enumerate(self._params):
            if params.grammar is not None:
                state = self.states[row]
                assert state is not None, "a text under a grammar contains no token that the grammar excludes"
                _exclude(state, scores[row], parents[row], tokens[row])
            if (text := self._texts[row]) is not None and params.process is not None:
                spoilt = _process(params.process, text.tokens, scores[row], parents[row], tokens[row])
                self._spoilt.update((row, tuple(path)) for path in spoilt)
        return scores

    def chosen(self, row: int, tokens: Sequence[int]) -> tuple[int, str]:
        """Return how many of a step's tokens a sequence's processors allow, and why the next one is not allowed."""
        for count in range(len(tokens) if self._spoilt else 0):
            if (row, tuple(tokens[:count])) in self._spoilt:
                return count, _SPOILT
        state = self.states[row]
        for count, token in enumerate(tokens if state is not None else ()):
            assert state is not None
            following = state.after(token)
            if state.error or following is None:
                return count, state.error or _NO_TOKEN
            state = following
        return len(tokens), ""

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        if not self.active:
            return
        self._spoilt.clear()
        for row, count in enumerate(counts.tolist()):
            if (text := self._texts[row]) is not None:
                text.extend(tokens[row, :count])
            state = self.states[row]
            for token in tokens[row, :count].tolist() if state is not None else ():
                state = state and state.after(token)
            self.states[row] = state

    def select(self, rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
        """Keep these sequences, in this order; `params` are those of the kept rows."""
        self._configure(params)
        self._texts = [self._texts[row] for row in rows]
        self.states = [self.states[row] for row in rows]

    def insert(self, other: Processors, params: Sequence[SamplingParams]) -> None:
        """Add the sequences of another batch after the present ones; `params` are those of all."""
        self._configure(params)
        self._texts += other._texts
        self.states += other.states


class _GrowingTokens:
    """A growing text, Long [T], in memory that doubles when it is full."""

    def __init__(self, prompt: Sequence[int], device: torch.device | str):
        self._memory, self._length = torch.tensor(prompt, dtype=torch.long, device=device), len(prompt)

    @property
    def tokens(self) -> Tensor:
        return self._memory[: self._length]

    def extend(self, tokens: Tensor) -> None:
        """Add tokens Long [A]."""
        end = self._length + len(tokens)
        if end > len(self._memory):
            self._memory = pad(self._memory, (0, end))
        self._memory[self._length : end] = tokens
        self._length = end


def _exclude(state: GrammarState, scores: Tensor, parents: list[int], tokens: list[int]) -> None:
    """Set the scores [N, V] of one tree to -inf for tokens that a grammar excludes; the root is the end of the text."""
    states: list[GrammarState | None] = [state]
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        above = states[parent] if parent >= 0 else None
        states.append(above and above.after(token))
    for node, one in enumerate(states):
        excluded = None if one is None else one.excluded
        if excluded is not None:
            scores[node].masked_fill_(excluded.to(scores.device), -torch.inf)


def _process(
    process: Process, text: Tensor, scores: Tensor, parents: list[int], tokens: list[int]
) -> list[list[int]]:
    """Change the scores [N, V] of one tree in place, depth by depth; its root is the end of the text Long [T].

    Return the paths to the nodes after which no token can be chosen, because the best score is NaN or -inf.
    """
    paths, nodes, spoilt = dict[int, list[int]]({0: []}), [0], list[list[int]]()
    while nodes:
        drafted = torch.tensor([paths[node] for node in nodes], dtype=torch.long, device=text.device)
        leading = torch.cat((text.expand(len(nodes), -1), drafted), dim=1)
        usable, found = scores[nodes].amax(1).isfinite(), process(leading, scores[nodes])
        if not isinstance(found, Tensor) or found.shape != (len(nodes), scores.shape[1]):
            raise UserError("the function process must return scores of the same shape as its input")
        scores[nodes] = found.to(scores.dtype)
        best = scores[nodes].amax(1)
        bad = (usable & ~(best > -torch.inf)).tolist()
        spoilt += [paths[node] for node, one in zip(nodes, bad, strict=True) if one]
        below = [node for node, parent in enumerate(parents) if parent in nodes]
        above = [parents[node] for node in below]
        possible = _possible(scores[above], [tokens[node] for node in below])
        nodes = [node for node, may_follow in zip(below, possible, strict=True) if may_follow]
        paths = {node: [*paths[parents[node]], tokens[node]] for node in nodes}
    return spoilt


def _possible(scores: Tensor, tokens: list[int]) -> list[bool]:
    """Return for each of P tokens whether its row of scores [P, V] allows it; a row of only -inf allows all."""
    own = scores.gather(1, torch.tensor(tokens, dtype=torch.long, device=scores.device).unsqueeze(1))
    excluded = own == -torch.inf
    return (~excluded | (scores == -torch.inf).all(1, keepdim=True)).squeeze(1).tolist()
