"""What the target model itself says next: logits processors and random numbers of the sequences of a batch.

The processors are those of transformers, in the same order: logit bias, repetition penalty, banned tokens; then, for
sequences that sample, temperature, top-k, top-p and min-p. Frequency and presence penalties, which transformers lacks,
come after the repetition penalty. Penalties look at the text and at the node's own path.

Shapes: B batch, N tree nodes, D depth of the tree, V vocabulary, A tokens committed in one step, P nodes whose
children are ranked or drawn, K children, V' tokens that a draft proposes from, W tokens that filters look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.sampling.gumbel_cache import CHOICE, GumbelCache
from clover.sampling.numbers import gumbels, most_probable, uniforms
from clover.sampling.params import SamplingParams
from clover.sampling.penalties import Penalties
from clover.sampling.processors import Processors
from clover.sampling.warpers import Warpers
from clover.tree import TokenTree

_DRAW, _TEST = 0, 1  # what a hashed number is for; another is `CHOICE`


@dataclass(frozen=True)
class GumbelNoise:
    """What a draft expects of the target's choices in one step, as tensors alone (see `Sampler.gumbel_scores`).

    `temperatures` float64 [B, 1, 1]; `numbers` float32 [B, D, V'] from the root's depth on, None if all are greedy.
    """

    temperatures: Tensor
    numbers: Tensor | None

    def gumbel_scores(self, logits: Tensor, depth: int, tokens: Tensor | None = None) -> Tensor:
        """See `Sampler.gumbel_scores`; which tokens the logits are of, the numbers know."""
        if self.numbers is None:
            return logits
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return scores / self.temperatures.to(scores.dtype) + self.numbers[:, depth : depth + 1]


class Sampler:
    """The processors of a batch, as tensors with an entry per sequence, and the random numbers of its sequences.

    Sequence b chooses its t-th new token by the Gumbel-max trick: the token v with the highest
    ``log p(v) + g[b, t, v]``. The g are standard Gumbel numbers, hashed from the sequence's seed, t and v and from
    nothing else. At a tree node of depth d, t is the number of new tokens committed so far plus d. So the sampled text
    is a function of model, prompt and parameters: the same with and without a draft, for every tree, batch and order
    of sequences.

    A draft may look at the same numbers (`gumbel_scores`), and guesses better for it. The target's choice does not
    depend on what is proposed, so this changes no text (drafter-invariant speculative decoding: Daliri, Musco and
    Suresh 2024, 2408.07978). Draws from the draft and the tests of recursive rejection sampling use other numbers,
    hashed from the seed, the number of new tokens committed so far, the node and the token.

    Args:
        params, prompts: one per sequence; UserError for params that do not fit the vocabulary.
        vocab_size: V, the size of the target's logits.
        device: where the logits will be.
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
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._configure(params)
        self._positions = torch.zeros(len(params), dtype=torch.long, device=self._device)
        self._penalties = Penalties(params, prompts, vocab_size, self._device)
        self._processors = Processors(params, prompts)
        tokens = torch.arange(vocab_size, device=self._device)
        self._numbers = GumbelCache(self._seeds, self._rows_greedy, tokens)
        self._depths = 1  # how many depths are hashed at once

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        """Set what depends on the parameters alone; None stands for a processor that no sequence needs."""
        self._params = tuple(params)
        self._rows_greedy = greedy = [row.greedy for row in params]
        self._any_greedy, self.any_sampled = any(greedy), not all(greedy)
        self._greedy = torch.tensor(greedy, dtype=torch.bool, device=self._device).view(-1, 1)
        biased = any(row.logit_bias or row.banned_tokens for row in params)
        self._bias = self._bias_tensor() if biased else None
        self._warpers = Warpers(params, self._vocab_size, self._device)
        self._seeds = torch.tensor([row.seed for row in params], dtype=torch.long, device=self._device)
        temperatures = [[[row.temperature or 1.0]] for row in params]
        self._draft_temperatures = torch.tensor(temperatures, dtype=torch.float64, device=self._device)

    def _bias_tensor(self) -> Tensor:
        """Logit bias and bans, float64 [B, 1, V]; no penalty brings a banned token back."""
        bias = torch.zeros(len(self._params), 1, self._vocab_size, dtype=torch.float64)
        for row, params in enumerate(self._params):
            for token, value in params.logit_bias.items():
                bias[row, 0, token] = value
            bias[row, 0, list(params.banned_tokens)] = -torch.inf
        return bias.to(self._device)

    def choose(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Choose the token that the target itself says after each node, Long [B, N].

        Waits for the device only if a sequence filters by top-k, top-p or min-p.

        Args:
            logits: [B, N, V], any floating dtype; computed with in float32, or float64 if they are that.
            tree: the tokens the logits belong to; `TokenTree.root_only` in plain decoding.

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
        drawn = most_probable(warped + self._gumbels_at(tree, tokens))
        if tokens is not None:
            drawn = tokens.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        return torch.where(self._greedy, most_probable(scores), drawn) if self._any_greedy else drawn

    @property
    def takes_most_probable(self) -> bool:
        """Whether `choose` is no more than `most_probable`: all sequences are greedy and none has a processor."""
        processed = self._bias is not None or self._penalties.active or self._processors.active
        return not (self.any_sampled or processed)

    def target_probs(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """The distribution that `choose` draws from, [B, N, V] in float32 or float64; one-hot for greedy sequences."""
        return self._probs(self._scores(logits, tree))

    def last_probs(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """What `target_probs` gives for the last node, [B, V], without the work for the others."""
        return self._probs(self._scores(logits, tree)[:, -1:])[:, 0]

    def _probs(self, scores: Tensor) -> Tensor:
        """The distributions [B, N, V] by the scores of `_scores`."""
        warped, tokens = self._warpers.warp(scores)
        if tokens is not None:
            warped = torch.full_like(scores, -torch.inf).scatter(-1, tokens, warped)
        probs = warped.softmax(-1)
        if not self._any_greedy:
            return probs
        one_hot = torch.zeros_like(scores).scatter(-1, most_probable(scores).unsqueeze(-1), 1.0)
        return torch.where(self._greedy.unsqueeze(-1), one_hot, probs)

    def gumbel_scores(self, logits: Tensor, depth: int, tokens: Tensor | None = None) -> Tensor:
        """Turn a draft's logits into scores of which the best are the likeliest choices of the target.

        They are log-probabilities at each sequence's temperature, up to a constant, plus the numbers by which
        `choose` will choose after these nodes. Greedy sequences keep their logits. Both are [B, P, V'], for the
        children of nodes at `depth` (0 for the root). `tokens` Long [V'] says which tokens they are of; None for the
        whole vocabulary.
        """
        numbers = self._gumbels_of(tokens, depth) if self.any_sampled else None
        return GumbelNoise(self._draft_temperatures, numbers).gumbel_scores(logits, 0)

    def gumbel_noise(self, depths: int, tokens: Tensor | None = None) -> GumbelNoise:
        """What `gumbel_scores` needs for nodes at the first `depths` depths; `tokens` as there."""
        if not self.any_sampled:
            return GumbelNoise(self._draft_temperatures, None)
        self.expect(depths - 1)
        numbers = [self._gumbels_of(tokens, depth) for depth in range(depths)]
        return GumbelNoise(self._draft_temperatures, torch.cat(numbers, dim=1))

    def draft_probs(self, logits: Tensor) -> Tensor:
        """Turn a draft's logits [B, P, V'] into what `draw` draws from, float64; all zero where none is finite."""
        return (logits.double() / self._draft_temperatures).softmax(-1).nan_to_num(0.0)

    def draw(self, draft_probs: Tensor, nodes: Tensor, count: int, tokens: Tensor | None = None) -> Tensor:
        """Draw K = `count` children of tree nodes without replacement.

        Greedy sequences take the most probable tokens. Otherwise those with the highest probability / -log(u) win, u
        being uniform. Those with probability 0, where fewer than K have any, were not drawn.

        Args:
            draft_probs: float64 [B, P, V'].
            nodes: Long [P], which nodes of the tree these are; each draws numbers of its own.
            tokens: Long [V'], which tokens the probabilities are of; None for the whole vocabulary.

        Returns Long [B, P, K], indices into the probabilities, in the order of the draws.
        """
        if self.any_sampled:
            places = self._seeds[:, None, None], _DRAW, self._positions[:, None, None], nodes[None, :, None]
            if tokens is None:
                tokens = torch.arange(draft_probs.shape[-1], device=draft_probs.device)
            speeds = draft_probs / -uniforms(*places, tokens).log()
            draft_probs = torch.where(self._greedy.unsqueeze(-1), draft_probs, speeds)
        return draft_probs.topk(count).indices

    def test_numbers(self, nodes: int) -> Tensor:
        """Return the number that each node of this step's tree is tested with, float64 [B, nodes] in (0, 1)."""
        places = torch.arange(nodes, device=self._device)
        return uniforms(self._seeds[:, None], _TEST, self._positions[:, None], places)

    def expect(self, max_depth: int) -> None:
        """Say how deep the trees of this step may be: the numbers of all their depths are then hashed at once."""
        self._depths = max_depth + 1

    def gumbels(self, max_depth: int) -> Tensor:
        """What chooses the tokens after nodes of depths 0 to D, float32 [B, D + 1, V]; 0 for greedy sequences."""
        depths = torch.arange(max_depth + 1, device=self._device).unsqueeze(0)
        return self._prepared(max_depth).of_nodes(depths)

    def _prepared(self, max_depth: int) -> GumbelCache:
        """The numbers of the whole vocabulary, ready down to this depth or as deep as trees may be."""
        self._numbers.prepare(self._positions, max(self._depths, max_depth + 1))
        return self._numbers

    def _gumbels_of(self, tokens: Tensor | None, depth: int) -> Tensor:
        """The numbers at one depth, [B, 1, V'] for tokens Long [V'], [B, 1, V] if they are None."""
        numbers = self._prepared(depth).of_depth(depth)
        return numbers if tokens is None else numbers[..., tokens]

    def _gumbels_at(self, tree: TokenTree, tokens: Tensor | None) -> Tensor:
        """The numbers of each node, [B, N, W] for `tokens`, [B, N, V] if they are None; few tokens are hashed alone."""
        if (
            tokens is None
            or self._numbers.ready
            or tokens[0].numel() >= self._vocab_size * (tree.max_depth + 1)
        ):
            return self._prepared(tree.max_depth).of_nodes(tree.depths, tokens)
        positions = (self._positions.unsqueeze(1) + tree.depths).unsqueeze(2)
        return gumbels(self._seeds[:, None, None], CHOICE, positions, tokens)

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first counts[b], Long [B], of new tokens Long [B, A] to the text of each sequence."""
        self._positions = self._positions + counts
        self._numbers.advance()
        self._penalties.commit(tokens, counts)
        self._processors.commit(tokens, counts)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these sequences, in this order."""
        self._configure([self._params[row] for row in rows])
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._positions = self._positions[index]
        self._penalties.select(index, self._params)
        self._processors.select(rows, self._params)
        self._numbers.select(rows, self._seeds, self._rows_greedy)

    def insert(self, other: Sampler) -> None:
        """Take in the sequences of another sampler of the same vocabulary and device, behind the own ones."""
        self._configure([*self._params, *other._params])
        self._positions = torch.cat((self._positions, other._positions))
        self._penalties.insert(other._penalties, self._params)
        self._processors.insert(other._processors, self._params)
        self._numbers.insert(self._seeds, self._rows_greedy)

    def _scores(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Apply what greedy sequences need too: bias, bans, penalties, and processors of the caller's own."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._bias is not None:
            scores = scores + self._bias.to(scores.dtype)
        scores = self._penalties.apply(scores, tree)
        return self._processors.apply(scores, tree) if self._processors.active else scores
