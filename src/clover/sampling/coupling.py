"""The random numbers of the sequences of a batch, and the part that a draft may use.

Shapes: B batch, N tree nodes, D depth of the tree, V vocabulary, A tokens committed in one step, P nodes whose
children are ranked or drawn, K children, V' tokens that a draft can propose, W tokens that filters consider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.sampling.gumbel_cache import CHOICE, GumbelCache
from clover.sampling.numbers import gumbels, uniforms
from clover.sampling.params import SamplingParams
from clover.tree import TokenTree

_DRAW, _TEST = 0, 1  # Each use of hashed numbers has its own code; the third is `CHOICE`.


@dataclass(frozen=True)
class GumbelNoise:
    """The random numbers of one step that a draft may use, only as tensors (see `Coupling.gumbel_scores`).

    `temperatures` float64 [B, 1, 1]; `numbers` float32 [B, D, V'] from the root's depth on, None if all are greedy.
    """

    temperatures: Tensor
    numbers: Tensor | None
    grammar_states = ()  # A graph never grows trees for texts with grammars.

    def gumbel_scores(self, logits: Tensor, depth: int, tokens: Tensor | None = None) -> Tensor:
        """Score logits as `Coupling.gumbel_scores` does; the numbers already belong to `tokens`."""
        if self.numbers is None:
            return logits
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return scores / self.temperatures.to(scores.dtype) + self.numbers[:, depth : depth + 1]


class Coupling:
    """The random numbers by which the sequences of a batch choose, draw and test tokens.

    Sequence b chooses its t-th new token by the Gumbel-max trick: the token v with the highest
    ``log p(v) + g[b, t, v]``. The g are standard Gumbel numbers, hashed only from the sequence's seed, t and v. At a
    tree node of depth d, t is the number of new tokens committed so far plus d. So the sampled text is a function of
    model, prompt and parameters: it is the same with and without a draft, for every tree, batch and order of sequences.

    A draft may use the same numbers (`gumbel_scores`) for better guesses. This changes no text, because the target's
    choice does not depend on the proposals (drafter-invariant speculative decoding: Daliri, Musco and Suresh 2024,
    2408.07978). Draws from the draft and the tests of recursive rejection sampling use other numbers, hashed from the
    seed, the number of new tokens committed so far, the node and the token.

    Args:
        params: one per sequence.
        vocab_size: V, the size of the target's logits.
        device: the device of the logits.
    """

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size, self._device = vocab_size, torch.device(device)
        self._configure(params)
        self._positions = torch.zeros(len(params), dtype=torch.long, device=self._device)
        self._numbers = GumbelCache(
            self._seeds, self._rows_greedy, torch.arange(vocab_size, device=self._device)
        )
        self._depths = 1  # the depths that are hashed at once

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        """Set the attributes that depend only on the parameters."""
        self._params = tuple(params)
        self._rows_greedy = greedy = [row.greedy for row in params]
        self._any_greedy, self.any_sampled = any(greedy), not all(greedy)
        self._greedy = torch.tensor(greedy, dtype=torch.bool, device=self._device).view(-1, 1)
        self._seeds = torch.tensor([row.seed for row in params], dtype=torch.long, device=self._device)
        temperatures = [[[row.temperature or 1.0]] for row in params]
        self._draft_temperatures = torch.tensor(temperatures, dtype=torch.float64, device=self._device)

    # -- for drafts ------------------------------------------------------------------------------------------------

    def expect(self, max_depth: int) -> None:
        """Announce the largest depth of this step's trees, so that the numbers of all depths are hashed at once."""
        self._depths = max_depth + 1

    def gumbel_scores(self, logits: Tensor, depth: int, tokens: Tensor | None = None) -> Tensor:
        """Turn a draft's logits into scores; the best scores mark the likeliest choices of the target.

        A score is a log-probability at the sequence's temperature, up to a constant, plus the number by which the
        target will choose after this node. Greedy sequences keep their logits.

        Args:
            logits: [B, P, V'], for the children of nodes at `depth`.
            depth: 0 for the root.
            tokens: Long [V'], the tokens of the logits; None for the whole vocabulary.
        """
        numbers = self._gumbels_of(tokens, depth) if self.any_sampled else None
        return GumbelNoise(self._draft_temperatures, numbers).gumbel_scores(logits, 0)

    def gumbel_noise(self, depths: int, tokens: Tensor | None = None) -> GumbelNoise:
        """Return the numbers for `gumbel_scores` of nodes at the first `depths` depths; `tokens` as in that method."""
        if not self.any_sampled:
            return GumbelNoise(self._draft_temperatures, None)
        self.expect(depths - 1)
        numbers = [self._gumbels_of(tokens, depth) for depth in range(depths)]
        return GumbelNoise(self._draft_temperatures, torch.cat(numbers, dim=1))

    def draft_probs(self, logits: Tensor) -> Tensor:
        """Turn a draft's logits [B, P, V'] into float64 distributions for `draw`; all zero if no logit is finite."""
        return (logits.double() / self._draft_temperatures).softmax(-1).nan_to_num(0.0)

    def draw(self, draft_probs: Tensor, nodes: Tensor, count: int, tokens: Tensor | None = None) -> Tensor:
        """Draw K = `count` children of tree nodes without replacement.

        Greedy sequences choose the most probable tokens. In others the tokens with the highest probability / -log(u)
        win, with uniform u. If fewer than K tokens have a probability above 0, the rest does not count as drawn.

        Args:
            draft_probs: float64 [B, P, V'].
            nodes: Long [P], the nodes of the tree; each node draws with its own numbers.
            tokens: Long [V'], the tokens of the probabilities; None for the whole vocabulary.

        Returns Long [B, P, K], indices into the probabilities, in the order of the draws.
        """
        if self.any_sampled:
            places = self._seeds[:, None, None], _DRAW, self._positions[:, None, None], nodes[None, :, None]
            if tokens is None:
                tokens = torch.arange(draft_probs.shape[-1], device=draft_probs.device)
            speeds = draft_probs / -uniforms(*places, tokens).log()
            draft_probs = torch.where(self._greedy.unsqueeze(-1), draft_probs, speeds)
        return draft_probs.topk(count).indices

    # -- for verification ------------------------------------------------------------------------------------------

    def test_numbers(self, nodes: int) -> Tensor:
        """Return one test number per node of this step's tree, float64 [B, nodes] in (0, 1)."""
        places = torch.arange(nodes, device=self._device)
        return uniforms(self._seeds[:, None], _TEST, self._positions[:, None], places)

    def gumbels(self, max_depth: int) -> Tensor:
        """Return the numbers that choose the tokens after nodes of depths 0 to D, float32 [B, D + 1, V].

        They are 0 for greedy sequences.
        """
        depths = torch.arange(max_depth + 1, device=self._device).unsqueeze(0)
        return self._prepared(max_depth).of_nodes(depths)

    def _gumbels_at(self, tree: TokenTree, tokens: Tensor | None) -> Tensor:
        """Return the numbers of each node: [B, N, W] of `tokens`, or [B, N, V]. Few tokens are hashed on their own."""
        if (
            tokens is None
            or self._numbers.ready
            or tokens[0].numel() >= self._vocab_size * (tree.max_depth + 1)
        ):
            return self._prepared(tree.max_depth).of_nodes(tree.depths, tokens)
        positions = (self._positions.unsqueeze(1) + tree.depths).unsqueeze(2)
        return gumbels(self._seeds[:, None, None], CHOICE, positions, tokens)

    @property
    def draws_alone(self) -> bool:
        """Return True on a CPU if no draft has read numbers of this step, and none are stored for the next step."""
        return self._device.type == "cpu" and self._depths == 1 and not self._numbers.ready

    def _gumbels_of(self, tokens: Tensor | None, depth: int) -> Tensor:
        """Return the numbers at one depth: [B, 1, V'] of tokens Long [V'], or [B, 1, V] of all."""
        numbers = self._prepared(depth).of_depth(depth)
        return numbers if tokens is None else numbers[..., tokens]

    def _prepared(self, max_depth: int) -> GumbelCache:
        """Return the numbers of the whole vocabulary, hashed down to `max_depth`, or to the depth of the trees."""
        self._numbers.prepare(self._positions, max(self._depths, max_depth + 1))
        return self._numbers

    # -- the batch -------------------------------------------------------------------------------------------------

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        self._positions = self._positions + counts
        self._numbers.advance()

    def select(self, rows: Sequence[int]) -> None:
        """Keep these sequences, in this order."""
        self._configure([self._params[row] for row in rows])
        self._positions = self._positions[torch.tensor(rows, dtype=torch.long, device=self._device)]
        self._numbers.select(rows, self._seeds, self._rows_greedy)

    def insert(self, other: Coupling) -> None:
        """Add the sequences of another batch of the same vocabulary and device after the present ones."""
        self._configure([*self._params, *other._params])
        self._positions = torch.cat((self._positions, other._positions))
        self._numbers.insert(self._seeds, self._rows_greedy)
