"""What the target model itself says next: logits processors, and draws that do not depend on the draft.

The processors are those of transformers, in the same order: logit bias, repetition penalty, banned tokens;
then, for rows that sample, temperature, top-k, top-p and min-p. The penalty looks at the text and at the
node's own path down the tree. Shapes: B batch, N tree nodes, V vocabulary, A tokens committed in one step,
W tokens looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clover.errors import UserError
from clover.tree import TokenTree

# How many of the most probable tokens a filter looks at first; eight times more while that is not enough.
_FIRST_WIDTH = 64


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Attributes:
        temperature: 0 takes the most probable token (top_k, top_p, min_p and seed then mean nothing); else
            from 1e-5 to 1e5.
        top_k: keep the k most probable tokens, and those as probable as the last of them; 0 keeps all.
        top_p: keep the fewest tokens, most probable first, whose probabilities sum to top_p, and those as
            probable as the last of them; in (0, 1].
        min_p: keep the tokens with at least this share of the highest probability; in [0, 1].
        repetition_penalty: positive logits of tokens in the text (prompt included) are divided, negative ones
            multiplied by it; 1e-3 to 1e3, 1 is off.
        logit_bias: added to the logits of these tokens, -1e6 to 1e6.
        banned_tokens: never emitted.
        seed: of the row's random numbers, in [0, 2^63); equal prompts with equal seeds get equal texts.

    Raises:
        UserError: a value is of the wrong type or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned_tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and (self.temperature == 0 or 1e-5 <= self.temperature <= 1e5)):
            raise UserError(f"temperature must be 0 (greedy) or from 1e-5 to 1e5, got {self.temperature!r}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise UserError(f"top_p must be a number above 0 and at most 1 (off), got {self.top_p!r}")
        if not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise UserError(f"min_p must be a number from 0 (off) to 1, got {self.min_p!r}")
        if not (_is_number(self.repetition_penalty) and 1e-3 <= self.repetition_penalty <= 1e3):
            raise UserError(
                f"repetition_penalty must be from 1e-3 to 1e3, 1 is off, got {self.repetition_penalty!r}"
            )
        if not _is_count(self.top_k):
            raise UserError(f"top_k must be a whole number, 0 is off, got {self.top_k!r}")
        if not (_is_count(self.seed) and self.seed < 2**63):
            raise UserError(f"seed must be a whole number from 0 to 2^63 - 1, got {self.seed!r}")
        self._check_tokens()

    def _check_tokens(self) -> None:
        if not isinstance(self.logit_bias, Mapping) or not isinstance(self.banned_tokens, Collection):
            raise UserError("logit_bias must map token ids to numbers, banned_tokens must list token ids")
        for token, bias in self.logit_bias.items():
            if not (_is_count(token) and _is_number(bias) and -1e6 <= bias <= 1e6):
                raise UserError(
                    f"logit_bias must give token ids a number from -1e6 to 1e6, got {token!r}: {bias!r}; "
                    "use banned_tokens to rule a token out"
                )
        for token in self.banned_tokens:
            if not _is_count(token):
                raise UserError(f"banned_tokens must hold token ids, got {token!r}")
        object.__setattr__(self, "banned_tokens", tuple(self.banned_tokens))

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, with no chance involved."""
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the token ids against a model.

        Raises:
            UserError: a token is not in the vocabulary, or every one of it is banned.
        """
        for name, tokens in (("logit_bias", self.logit_bias), ("banned_tokens", self.banned_tokens)):
            highest = max(tokens, default=0)
            if highest >= vocab_size:
                raise UserError(f"{name} has token {highest}, but the vocabulary ends at {vocab_size - 1}")
        if len(set(self.banned_tokens)) == vocab_size:
            raise UserError("banned_tokens bans the whole vocabulary; leave at least one token")


class Sampler:
    """The processors of a batch as per-row tensors, and the random numbers of its rows.

    Row b draws its t-th new token by inverting the cumulative distribution function, in the order of the
    vocabulary, at the uniform number ``u[b, t]``, which the row's seed alone determines. At a tree node of
    depth d, t is the number of new tokens committed so far plus d. So the sampled text is a function of
    model, prompt and parameters: the same with and without a draft, for every tree, batch and order of rows.
    Siblings share a number, but at most one of them is on the path.

    Args:
        params: one per row.
        prompts: token ids of each row's prompt.
        max_new_tokens: per row, how many random numbers it gets; draws past them are made, but mean nothing.
        vocab_size: V, the size of the target's logits.
        device: where the logits will be.

    Raises:
        UserError: params that do not fit the vocabulary.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        prompts: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        assert len(params) == len(prompts) == len(max_new_tokens)
        for row in params:
            row.check_vocabulary(vocab_size)
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._configure(params)
        self._positions = torch.zeros(len(params), dtype=torch.long, device=self._device)
        self._uniforms = _uniforms(params, max_new_tokens).to(self._device)
        self._seen = self._seen_in(prompts).to(self._device)

    def _configure(self, params: Sequence[SamplingParams]) -> None:
        """Set what depends on the parameters alone; None stands for a processor that no row needs."""
        self._params = tuple(params)
        greedy = [row.greedy for row in params]
        self._any_greedy, self._any_sampled = any(greedy), not all(greedy)
        self._greedy = torch.tensor(greedy, dtype=torch.bool, device=self._device).view(-1, 1)
        self._penalty = _column([row.repetition_penalty for row in params], 1.0, self._device)
        biased = any(row.logit_bias or row.banned_tokens for row in params)
        self._bias = self._bias_tensor() if biased else None
        self._warpers = _Warpers(params, self._vocab_size, self._device)

    def _bias_tensor(self) -> Tensor:
        """Logit bias and bans, float64 [B, 1, V]; no penalty brings a banned token back."""
        bias = torch.zeros(len(self._params), 1, self._vocab_size, dtype=torch.float64)
        for row, params in enumerate(self._params):
            for token, value in params.logit_bias.items():
                bias[row, 0, token] = value
            bias[row, 0, list(params.banned_tokens)] = -torch.inf
        return bias.to(self._device)

    def _seen_in(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Bool [B, V + 1]; the last column takes what is padding, or a token that has no logit."""
        seen = torch.zeros(len(prompts), self._vocab_size + 1, dtype=torch.bool)
        if self._penalty is not None:
            rows = [row for row, prompt in enumerate(prompts) for _ in prompt]
            tokens = [min(token, self._vocab_size) for prompt in prompts for token in prompt]
            seen[rows, tokens] = True
        return seen

    def choose(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Choose the token that the target itself says after each node.

        Args:
            logits: [B, N, V], any floating dtype; computed with in float32, or float64 if they are that.
            tree: the tokens the logits belong to; `TokenTree.root_only` in plain decoding.

        Returns:
            Long [B, N]. Waits for the device only if a row filters by top-k, top-p or min-p.

        Below, the second row samples at a low temperature with token 1 banned.

        >>> rows = [SamplingParams(), SamplingParams(temperature=0.1, banned_tokens=(1,))]
        >>> sampler = Sampler(rows, prompts=[[0], [0]], max_new_tokens=[8, 8], vocab_size=3, device="cpu")
        >>> tree = TokenTree.root_only(torch.tensor([[0], [0]]))
        >>> sampler.choose(torch.tensor([[[1.0, 9.0, 5.0]]] * 2), tree)
        tensor([[1],
                [2]])
        """
        if not self._any_sampled and self._bias is None and self._penalty is None:
            return _most_probable(logits)
        scores = self._scores(logits, tree)
        if not self._any_sampled:
            return _most_probable(scores)
        weights, tokens = self._warpers.weights(scores)
        drawn = _inverse_cdf(weights, self._uniforms_at(tree.depths))
        drawn = drawn if tokens is None else tokens.gather(-1, drawn)
        drawn = drawn.squeeze(-1)
        return torch.where(self._greedy, _most_probable(scores), drawn) if self._any_greedy else drawn

    def target_probs(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Return the distribution that `choose` draws from, for the same arguments.

        Returns:
            [B, N, V], float32 or float64. All of a greedy row's probability is on one token.
        """
        scores = self._scores(logits, tree)
        weights, tokens = self._warpers.weights(scores)
        if tokens is not None:
            weights = torch.zeros_like(scores).scatter(-1, tokens, weights)
        probs = weights / weights.sum(-1, keepdim=True)
        one_hot = torch.zeros_like(scores).scatter(-1, _most_probable(scores).unsqueeze(-1), 1.0)
        return torch.where(self._greedy.unsqueeze(-1), one_hot, probs)

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """Append new tokens to the text of each row.

        Args:
            tokens: Long [B, A], padded at the end with any token ids.
            counts: Long [B]; how many of them count, 0 to A.
        """
        self._positions = self._positions + counts
        if self._penalty is not None:
            padding = torch.arange(tokens.shape[1], device=tokens.device) >= counts.unsqueeze(1)
            self._seen = self._seen.scatter(1, tokens.masked_fill(padding, self._vocab_size), True)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self._configure([self._params[row] for row in rows])
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._positions, self._uniforms, self._seen = (
            tensor[index] for tensor in (self._positions, self._uniforms, self._seen)
        )

    def _uniforms_at(self, depths: Tensor) -> Tensor:
        """Return the random number of each node, float64 [B, N]."""
        positions = self._positions.unsqueeze(1) + depths
        return self._uniforms.gather(1, positions.clamp(max=self._uniforms.shape[1] - 1))

    def _scores(self, logits: Tensor, tree: TokenTree) -> Tensor:
        """Apply what greedy rows need too: bias, repetition penalty, bans."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._bias is not None:
            scores = scores + self._bias.to(scores.dtype)
        if self._penalty is not None:
            scores = self._penalised(scores, tree, self._penalty.to(scores.dtype))
        return scores

    def _penalised(self, scores: Tensor, tree: TokenTree, penalty: Tensor) -> Tensor:
        # What is no ancestor is counted as the root's token, which is on every path.
        path_tokens = torch.where(tree.ancestor_mask, tree.tokens.unsqueeze(1), tree.tokens[:, :1, None])
        seen = self._seen[:, None, : self._vocab_size].expand(scores.shape).scatter(2, path_tokens, True)
        return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


class _Warpers:
    """Temperature, top-k, top-p and min-p of a batch: tensors [B, 1, 1], None for what no row needs."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        # The draws of a greedy row are not used: let it cause no work.
        rows = [SamplingParams(temperature=1.0) if row.greedy else row for row in params]
        top_k = [row.top_k if row.top_k < vocab_size else 0 for row in rows]
        filtered = [bool(k) or row.top_p < 1 or row.min_p > 0 for k, row in zip(top_k, rows, strict=True)]
        self._unfiltered = ~torch.tensor(filtered, dtype=torch.bool, device=device).view(-1, 1, 1)
        self._any_filtered = any(filtered)
        self._all_filtered = all(own or row.greedy for own, row in zip(filtered, params, strict=True))
        self._first_width = max([_FIRST_WIDTH, *(k + 1 for k in top_k)])
        self._temperature = _column([row.temperature for row in rows], 1.0, device)
        self._top_k = _column(top_k, 0, device)
        self._top_p = _column([row.top_p for row in rows], 1.0, device)
        self._min_p = _column([row.min_p for row in rows], 0.0, device)

    def weights(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Turn scores [B, N, V] into probabilities, not normalised, and the tokens they belong to.

        Both [B, N, W] in the order of the vocabulary; the tokens are None where W = V.
        """
        if self._temperature is not None:
            scores = scores / self._temperature.to(scores.dtype)
        probs = scores.softmax(-1)
        if not self._any_filtered:
            return probs, None
        values, tokens, floor = self._filter(probs)
        if not self._all_filtered:
            return torch.where(probs < floor, 0.0, probs), None
        tokens, order = tokens.sort(-1)
        return torch.where(values < floor, 0.0, values).gather(-1, order), tokens

    def _filter(self, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find the probability below which each node's tokens are dropped.

        All three filters keep tokens down to some probability. So the highest of the three decides, and only
        as many of the most probable tokens need to be sorted as hold all that is kept.

        Returns:
            the highest probabilities and their tokens, both [B, N, W]; the lowest probability that is kept
            [B, N, 1], 0 for rows without a filter.
        """
        width = min(self._first_width, self._vocab_size)
        while True:
            values, tokens = probs.topk(width)
            kth = self._kth_probability(values)
            floor = self._floor(values, kth)
            # The equals of the k-th must all be there: top-p takes a share of what top-k keeps.
            last, needed = values[..., -1:], torch.where(kth > 0, kth, floor)
            if width == self._vocab_size or bool(((last < needed) | (last == 0) | self._unfiltered).all()):
                return values, tokens, floor
            width = min(8 * width, self._vocab_size)

    def _kth_probability(self, values: Tensor) -> Tensor:
        """Return what top-k keeps at least, [B, N, 1]; 0 where it is off."""
        if self._top_k is None:
            return torch.zeros_like(values[..., :1])
        index = (self._top_k - 1).clamp(min=0).expand(*values.shape[:2], 1)
        return values.gather(-1, index).masked_fill(self._top_k == 0, 0.0)

    def _floor(self, values: Tensor, kth: Tensor) -> Tensor:
        floor = kth
        if self._top_p is not None:
            mass: Tensor | float = 1.0
            if self._top_k is not None:
                kept = torch.where(values < kth, 0.0, values).sum(-1, keepdim=True, dtype=torch.float64)
                mass = kept.masked_fill(self._top_k == 0, 1.0)
            index = (values.cumsum(-1, dtype=torch.float64) < self._top_p * mass).sum(-1, keepdim=True)
            lowest = values.gather(-1, index.clamp(max=values.shape[-1] - 1))
            floor = torch.maximum(floor, lowest.masked_fill(self._top_p == 1, 0.0))
        if self._min_p is not None:
            floor = torch.maximum(floor, values[..., :1] * self._min_p.to(values.dtype))
        return floor


def _column(values: Sequence[float], off: float, device: torch.device) -> Tensor | None:
    """Return one value per row, [B, 1, 1], or None if the processor is off in all rows."""
    if all(value == off for value in values):
        return None
    dtype = torch.long if isinstance(off, int) else torch.float64
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


def _most_probable(scores: Tensor) -> Tensor:
    # As argmax, the first of equals; on a CPU several times faster.
    return scores.max(-1).indices


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first index at which the running sum of the weights exceeds a share of their total.

    Args:
        weights: [..., W], not negative.
        uniforms: float64 [...], the share, in [0, 1).

    Returns:
        Long [..., 1]; its weight is never zero, unless all are.

    >>> _inverse_cdf(torch.tensor([[0.0, 3.0, 0.0, 1.0]] * 2), torch.tensor([0.0, 0.75]).double())
    tensor([[1],
            [3]])
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(sums, uniforms.unsqueeze(-1) * sums[..., -1:], right=True)
    index = index.clamp(max=weights.shape[-1] - 1)
    # Sums are rounded, and in a parallel scan need not even be monotonic: the index may have no weight.
    return torch.where(weights.gather(-1, index) > 0, index, _most_probable(weights).unsqueeze(-1))


def _uniforms(params: Sequence[SamplingParams], lengths: Sequence[int]) -> Tensor:
    """Return float64 [B, max(lengths)] in [0, 1), drawn on the CPU and so the same on every device."""
    uniforms = torch.zeros(len(params), max([1, *lengths]), dtype=torch.float64)
    generator = torch.Generator()
    for row, (own, length) in enumerate(zip(params, lengths, strict=True)):
        if not own.greedy:
            generator.manual_seed(own.seed)
            uniforms[row, :length] = torch.rand(length, generator=generator, dtype=torch.float64)
    return uniforms


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
