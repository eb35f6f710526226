"""The decoding engine: a batch of requests in, a stream of step events out.

One decoding step: the draft grows a token tree, the target runs root and drafts in one pass, what it would have said
anyway is kept (rule A, or rule B for drawn trees), and the cache is compacted to the accepted path. Plain decoding is
the same step with a tree that is only its root. Row b's root is its last committed token, whose keys and values are
not cached yet.

Shapes: B batch, A nodes of an accepted path, N nodes of a tree, T text, W width of the hidden states the draft reads,
V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafting import Drafter, make_drafter
from clover.drafts import DraftModel, DraftSession
from clover.engine.requests import Request, StepEvent
from clover.engine.rows import Row
from clover.engine.timing import PhaseClock
from clover.errors import UserError
from clover.sampling import Sampler
from clover.target import TargetModel, TargetOutput
from clover.target.packing import PackedLinears
from clover.tree import TokenTree, Tree
from clover.verify import Verified, verify, verify_drawn

_ROOM = 4096  # new tokens that a cache is made for at once; later ones make it grow


@dataclass
class PrefixCache:
    """What one conversation leaves for its next turn: its committed tokens and the caches that hold them."""

    tokens: list[int] = field(default_factory=list)
    cache: KVCache | None = None
    session: DraftSession | None = None

    def shared_length(self, prompt: Sequence[int]) -> int:
        """Tokens at the start of `prompt` that need no prefill.

        One less than agree: the draft pairs each position with the token after it, and that one must agree too. And
        two less than the prompt has: its last token is the root, the one before is run for its hidden state.
        """
        agreeing = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            agreeing += 1
        cached = [c.lengths[0] for c in (self.cache, self.session) if c is not None]
        return max(min([agreeing - 1, len(prompt) - 2, *cached]), 0)


@dataclass
class _Batch:
    """The running rows. `hidden`, `next_tokens` and `counts` are positions that the draft has not taken in yet."""

    rows: list[Row]
    cache: KVCache
    session: DraftSession | None
    sampler: Sampler
    root: Tensor  # Long [B]
    hidden: Tensor  # [B, A, W]
    next_tokens: Tensor  # Long [B, A]
    counts: list[int]

    def drop_finished(self) -> None:
        """Take finished rows out; the last row moves into the place of each."""
        kept = list(range(len(self.rows)))
        for row in reversed(range(len(self.rows))):
            if self.rows[row].finish_reason:
                kept[row] = kept[-1]
                kept.pop()
                self.cache.drop(row)
                if self.session is not None:
                    self.session.drop(row)
        if len(kept) == len(self.rows):
            return
        self.rows = [self.rows[row] for row in kept]
        self.counts = [self.counts[row] for row in kept]
        if kept:
            self.sampler.select(kept)
            chosen = torch.tensor(kept, device=self.root.device)
            self.root, self.next_tokens = self.root[chosen], self.next_tokens[chosen]
            self.hidden = self.hidden[chosen]


class Engine:
    """Decodes batches with a target and, unless it is None, a draft.

    Args:
        target: the frozen model whose output is produced.
        draft: proposes tokens; None for plain decoding.
        tree: what the draft grows, a static tree or a rule; when left out the tree that its configuration names.
        prefill_chunk: prompt tokens that are run at once per row.
        capacity: cache slots per row at the start; when left out enough for the prompt and 4,096 new tokens.

    Raises:
        UserError: the tree is deeper than the draft goes.
    """

    def __init__(
        self,
        target: TargetModel,
        draft: DraftModel | None = None,
        tree: Tree | None = None,
        prefill_chunk: int = 512,
        capacity: int | None = None,
    ):
        self.target, self.draft = target, draft
        self.drafter: Drafter | None = None if draft is None else make_drafter(draft, tree)
        self._hidden_state = "post_norm" if draft is None else draft.config.hidden_state
        self.prefill_chunk, self.capacity = prefill_chunk, capacity
        self._packed = PackedLinears(*(m for m in (target.model, draft) if isinstance(m, nn.Module)))

    def run(
        self, requests: Sequence[Request], clock: PhaseClock | None = None, prefix: PrefixCache | None = None
    ) -> Generator[StepEvent, None, None]:
        """Decode `requests` as one batch; yields every row's share of every step.

        Args:
            clock: adds up where the time goes.
            prefix: a single request's earlier turns, read at the start and brought up to date at the end, also when
                the consumer stops early.

        Raises:
            UserError: a prompt does not fit into the context or holds tokens the target does not know, or the target
                cannot run that long; raised before anything is generated.
        """
        if not requests:
            return
        self._check(requests)
        clock = clock or PhaseClock()
        self._packed.refresh()
        with torch.inference_mode(), self._packed.active():
            with clock.phase("prefill"):
                batch = self._start(requests, prefix)
        try:
            while batch.rows:
                with torch.inference_mode(), self._packed.active():
                    events = self._step(batch, clock)
                yield from events
                with torch.inference_mode():
                    self._finish(batch, prefix)
        finally:
            if prefix is not None and batch.rows:
                _remember(batch, prefix)

    def _finish(self, batch: _Batch, prefix: PrefixCache | None) -> None:
        if prefix is not None and batch.rows[0].finish_reason:
            _remember(batch, prefix)
            batch.rows = []
        else:
            batch.drop_finished()

    def _check(self, requests: Sequence[Request]) -> None:
        context = self.target.context_length
        for request in requests:
            length = len(request.prompt)
            if length >= context:
                raise UserError(
                    f"the prompt has {length} tokens but the target's context is {context}; shorten it"
                )
            if not all(0 <= token < self.target.vocab_size for token in request.prompt):
                raise UserError(
                    f"the prompt holds a token outside the vocabulary of {self.target.vocab_size}"
                )
            if request.stop and self.target.tokenizer is None:
                raise UserError("stop strings need a tokenizer, and the target has none")
            self.target.check_run(min(length + request.max_new_tokens, context))

    # -- prefill ---------------------------------------------------------------------------------------------------

    def _start(self, requests: Sequence[Request], prefix: PrefixCache | None) -> _Batch:
        started, target = time.perf_counter(), self.target
        room = [target.context_length - len(request.prompt) for request in requests]
        rows = [
            Row(i, request, room[i], target.eos_token_ids, target.tokenizer, started)
            for i, request in enumerate(requests)
        ]
        sampler = Sampler(
            [request.params for request in requests],
            [request.prompt for request in requests],
            target.vocab_size,
            target.device,
        )
        cache, session, done = self._caches(requests, prefix)
        hidden = self._prefill(requests, cache, session, done)
        last = [[request.prompt[-1]] for request in requests]
        return _Batch(
            rows=rows,
            cache=cache,
            session=session,
            sampler=sampler,
            root=torch.tensor(last, device=target.device)[:, 0],
            hidden=hidden,
            next_tokens=torch.tensor(last, device=target.device),
            counts=[min(1, len(request.prompt) - 1) for request in requests],
        )

    def _caches(
        self, requests: Sequence[Request], prefix: PrefixCache | None
    ) -> tuple[KVCache, DraftSession | None, int]:
        """Caches for the batch and how many tokens they already hold."""
        assert prefix is None or len(requests) == 1, "a prefix belongs to one request"
        if prefix is not None and prefix.cache is not None:
            shared = prefix.shared_length(requests[0].prompt)
            prefix.tokens = prefix.tokens[:shared]  # whatever fails from here on, they describe the cache
            prefix.cache.crop([shared])
            if prefix.session is not None:
                prefix.session.crop([shared])
            return prefix.cache, prefix.session, shared
        longest = max(len(r.prompt) + min(r.max_new_tokens, _ROOM) for r in requests)
        nodes = 1 if self.drafter is None else self.drafter.max_nodes
        capacity = self.capacity or min(longest, self.target.context_length) + nodes
        session = None if self.draft is None else self.draft.new_session(len(requests), capacity)
        return self.target.new_cache(len(requests), capacity), session, 0

    def _prefill(
        self, requests: Sequence[Request], cache: KVCache, session: DraftSession | None, done: int
    ) -> Tensor:
        """Run all prompts but for their last tokens, from position `done` on.

        The draft takes in all of that but the last position, so that every row has exactly one position left for it
        when decoding starts. Returns that position's hidden states [B, 1, W].
        """
        device, batch_size = self.target.device, len(requests)
        lengths = [len(request.prompt) - 1 for request in requests]
        width = self.target.hidden_width(self._hidden_state)
        left = torch.zeros(batch_size, 1, width, dtype=self.target.dtype, device=device)
        for start in range(done, max(lengths), self.prefill_chunk):
            size = min(self.prefill_chunk, max(lengths) - start)
            counts = [min(max(length - start, 0), size) for length in lengths]
            text = [request.prompt[start : start + size + 1] for request in requests]
            tokens = torch.tensor([[*part, *[0] * (size + 1 - len(part))] for part in text], device=device)
            hidden = self._run(cache, tokens[:, :-1], None).read
            cache.commit(counts)
            for row, count in enumerate(counts):
                if count and start + count == lengths[row]:
                    left[row, 0] = hidden[row, count - 1]
            if session is not None:
                paired = [
                    min(count, max(length - 1 - start, 0))
                    for count, length in zip(counts, lengths, strict=True)
                ]
                session.commit(hidden, tokens[:, 1:], paired)
        return left

    # -- one step --------------------------------------------------------------------------------------------------

    def _step(self, batch: _Batch, clock: PhaseClock) -> list[StepEvent]:
        clock.steps += 1
        with clock.phase("draft"):
            tree = self._draft(batch)
        with clock.phase("verify"):
            output = self._run(batch.cache, tree.tokens, tree)
            logits = self.target.logits(output.hidden)
        with clock.phase("accept"):
            verified = _verify(tree, logits, batch.sampler)
            counts, depths, tokens, path = _to_host(verified, tree)
        with clock.phase("keep"):
            self._keep(batch, output, verified, counts, path)
            return [row.accept(tokens[b][: counts[b]], depths[b]) for b, row in enumerate(batch.rows)]

    def _draft(self, batch: _Batch) -> TokenTree:
        if batch.session is None or self.drafter is None:
            return TokenTree.root_only(batch.root.unsqueeze(1))
        logits = batch.session.commit(batch.hidden, batch.next_tokens, batch.counts)
        furthest = self.target.position_limit - self.drafter.max_depth
        at_limit = [length >= furthest for length in batch.cache.lengths]
        if all(at_limit):
            return TokenTree.root_only(batch.root.unsqueeze(1))
        tree = self.drafter.grow(batch.session, logits, batch.root, batch.sampler)
        return (
            tree.without(torch.tensor(at_limit, device=batch.root.device)[:, None]) if any(at_limit) else tree
        )

    def _run(self, cache: KVCache, tokens: Tensor, tree: TokenTree | None) -> TargetOutput:
        """One forward of the target over plain text (tree None) or the nodes of a tree."""
        if tree is None:
            positions, mask = cache.positions(tokens.shape[1]), None
        else:
            positions = cache.positions(1) + tree.depths
            mask = cache.attention_mask(tree.ancestor_mask)
        cache.begin(tokens.shape[1])
        return self.target.forward(tokens, positions, cache, mask, self._hidden_state)

    def _keep(
        self,
        batch: _Batch,
        output: TargetOutput,
        verified: Verified,
        counts: list[int],
        path: list[list[int]],
    ) -> None:
        longest = max(counts)
        batch.cache.keep(torch.tensor(path)[:, :longest], counts)
        batch.sampler.commit(verified.tokens, verified.counts)
        batch.counts, batch.next_tokens = counts, verified.tokens[:, :longest]
        batch.root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1).squeeze(1)
        index = verified.path[:, :longest].unsqueeze(-1).expand(-1, -1, output.read.shape[-1])
        batch.hidden = output.read.gather(1, index)


def _verify(tree: TokenTree, logits: Tensor, sampler: Sampler) -> Verified:
    if tree.draws is None:
        return verify(tree, sampler.choose(logits, tree))
    target_probs = sampler.target_probs(logits.double(), tree)
    tests, bonus = sampler.test_numbers(tree.tokens.shape[1]), sampler.gumbels(tree.max_depth)
    return verify_drawn(tree, target_probs, tests, bonus)


def _to_host(
    verified: Verified, tree: TokenTree
) -> tuple[list[int], list[int], list[list[int]], list[list[int]]]:
    """Counts, drafted depths, tokens and paths in the one transfer of a step."""
    width = verified.path.shape[1]
    depths = tree.depths.amax(1, keepdim=True)
    packed = torch.cat((verified.counts.unsqueeze(1), depths, verified.tokens, verified.path), dim=1).tolist()
    return (
        [row[0] for row in packed],
        [row[1] for row in packed],
        [row[2 : 2 + width] for row in packed],
        [row[2 + width :] for row in packed],
    )


def _remember(batch: _Batch, prefix: PrefixCache) -> None:
    row = batch.rows[0]
    prefix.tokens = [*row.request.prompt, *row.tokens]
    prefix.cache, prefix.session = batch.cache, batch.session
