"""One decoding step: the draft grows a token tree, the target runs it, what it would have said anyway is kept.

Rule A verifies, or rule B for drawn trees. Plain decoding is the same step with a tree that is only its root: what is
known of that tree without looking is not worked out.

Shapes: B batch, A nodes of an accepted path, N nodes of a tree, W width of the hidden states the draft reads,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafting import Copier, Drafter
from clover.drafts import DraftSession
from clover.engine.batch import Batch
from clover.engine.captured import CapturedSteps
from clover.engine.chunks import chunk_size
from clover.sampling import Sampler
from clover.target import TargetModel
from clover.tree import TokenTree
from clover.verify import Verified, verify, verify_drawn, verify_on_host


@dataclass(frozen=True)
class TreeRun:
    """What the target made of the trees.

    Attributes:
        read: [B, N, W], hidden states of the kind that the draft reads.
        logits: [B, N, V]; None where the same graph has verified the trees.
        verified: what it found; None elsewhere.
    """

    read: Tensor
    logits: Tensor | None
    verified: Verified | None = None


@dataclass(frozen=True)
class Settled:
    """What one step settled, on the host; one entry per row.

    Attributes:
        counts: tokens emitted, and nodes accepted.
        depths: of the trees.
        tokens, paths: those tokens and nodes; what follows a row's count is padding.
    """

    counts: list[int]
    depths: list[int]
    tokens: list[list[int]]
    paths: list[list[int]]


def draft_tree(
    batch: Batch,
    drafter: Drafter | Copier | None,
    position_limit: int,
    chunk: int,
    captured: CapturedSteps | None = None,
) -> TokenTree:
    """Let the draft take in what is pending, in parts of `chunk` positions, and grow a tree; the root without one.

    Copies are made without it.
    """
    root = batch.root.unsqueeze(1)
    batch.sampler.expect(0 if drafter is None else drafter.max_depth)
    if drafter is None or batch.session is None:
        return TokenTree.root_only(root)
    furthest = position_limit - drafter.max_depth
    at_limit = [length >= furthest for length in batch.cache.lengths]
    if isinstance(drafter, Copier):
        if all(at_limit):
            return TokenTree.root_only(root)
        rows = zip(batch.rows, at_limit, strict=True)
        return drafter.grow(batch.root, [None if full else row.repetition for row, full in rows])
    tree = None if captured is None or all(at_limit) else captured.draft(batch, drafter, chunk)
    if tree is None:
        logits = catch_up(batch, batch.session, chunk)
        if all(at_limit):
            return TokenTree.root_only(root)
        tree = drafter.grow(batch.session, logits, batch.root, batch.sampler)
    return tree.without(torch.tensor(at_limit, device=root.device)[:, None]) if any(at_limit) else tree


def catch_up(batch: Batch, session: DraftSession, chunk: int) -> Tensor:
    """Let the draft take in what is pending, in parts of `chunk` positions; its logits [B, V] after that."""
    size = chunk_size(chunk, len(batch.rows), batch.cache.length)
    first, *others = (session.commit(*part) for part in batch.pending.take(size))
    return others[-1] if others else first


def run_tree(
    batch: Batch,
    target: TargetModel,
    tree: TokenTree,
    hidden_state: str,
    captured: CapturedSteps | None = None,
) -> TreeRun:
    """Run the nodes of the trees through the target."""
    if captured is not None:
        return TreeRun(*captured.run_tree(batch, tree))
    cache, nodes = batch.cache, tree.tokens.shape[1]
    plain = nodes == 1 and cache.uniform
    positions = cache.positions(1) if nodes == 1 else cache.positions(1) + tree.depths
    mask = None if plain else cache.attention_mask(tree.ancestor_mask)
    cache.begin(nodes)
    output = target.forward(tree.tokens, positions, cache, mask, hidden_state)
    return TreeRun(output.read, target.logits(output.hidden))


def settle(batch: Batch, tree: TokenTree, run: TreeRun) -> tuple[Verified, Settled]:
    """Verify the trees by what the target made of them; the one transfer of a step from the device is here."""
    rows, nodes = tree.tokens.shape
    logits = run.logits
    if run.verified is not None or logits is None:
        assert run.verified is not None
        return run.verified, _to_host(run.verified, tree)
    if tree.draws is not None:
        verified = _verify_drawn(tree, logits, batch.sampler)
        return verified, _to_host(verified, tree)
    tokens = batch.sampler.choose(logits, tree)
    if nodes == 1:
        ones = torch.ones(rows, dtype=torch.long, device=tokens.device)
        verified = Verified(torch.zeros_like(tokens), ones, tokens)
        return verified, Settled([1] * rows, [0] * rows, tokens.tolist(), [[0]] * rows)
    if tokens.device.type == "cpu":
        return _settle_on_host(tree, tokens)
    verified = verify(tree, tokens)
    return verified, _to_host(verified, tree)


def keep(batch: Batch, run: TreeRun, verified: Verified, counts: list[int]) -> None:
    """Keep what was accepted, and leave it for the draft to take in."""
    longest = max(counts)
    path = verified.path[:, :longest]
    batch.cache.keep(path, counts)
    batch.sampler.commit(verified.tokens, verified.counts)
    batch.root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1).squeeze(1)
    if batch.session is not None:
        index = path.unsqueeze(-1).expand(-1, -1, run.read.shape[-1])
        batch.pending.append(run.read.gather(1, index), verified.tokens[:, :longest], counts)


def _verify_drawn(tree: TokenTree, logits: Tensor, sampler: Sampler) -> Verified:
    target_probs = sampler.target_probs(logits.double(), tree)
    tests, bonus = sampler.test_numbers(tree.tokens.shape[1]), sampler.gumbels(tree.max_depth)
    return verify_drawn(tree, target_probs, tests, bonus)


def _settle_on_host(tree: TokenTree, choices: Tensor) -> tuple[Verified, Settled]:
    """Its tensors are as wide as the longest accepted path, with zeros for padding."""
    found = verify_on_host(tree, choices)
    paths, tokens = [path for path, _ in found], [tokens for _, tokens in found]
    counts = [len(path) for path in paths]
    padding = [[0] * (max(counts) - count) for count in counts]
    verified = Verified(
        path=torch.tensor([path + more for path, more in zip(paths, padding, strict=True)]),
        counts=torch.tensor(counts),
        tokens=torch.tensor([emitted + more for emitted, more in zip(tokens, padding, strict=True)]),
    )
    return verified, Settled(counts, tree.depths.amax(1).tolist(), tokens, paths)


def _to_host(verified: Verified, tree: TokenTree) -> Settled:
    width = verified.path.shape[1]
    depths = tree.depths.amax(1, keepdim=True)
    packed = torch.cat((verified.counts.unsqueeze(1), depths, verified.tokens, verified.path), dim=1).tolist()
    return Settled(
        counts=[row[0] for row in packed],
        depths=[row[1] for row in packed],
        tokens=[row[2 : 2 + width] for row in packed],
        paths=[row[2 + width :] for row in packed],
    )
