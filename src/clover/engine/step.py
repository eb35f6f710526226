"""One decoding step: a drafter grows token trees, the target runs them, what it would have said anyway is kept.

Plain decoding is the same step with a root alone. `clover.reference` is this step for one sequence, without what
makes it fast.

Shapes: B batch, A nodes of an accepted path, N nodes of a tree, W width of the hidden states the draft reads, V
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clover.drafting import Drafter, DraftInput
from clover.engine.batch import Batch
from clover.engine.prefill import chunk_size
from clover.sampling import Sampler
from clover.tree import TokenTree, TreeShape
from clover.verify import Verified, verify, verify_drawn, verify_drawn_on_host, verify_on_host

if TYPE_CHECKING:
    from clover.engine.engine import Engine

_HOST = "cpu"  # the type of device that verification may ask for values at any time


@dataclass(frozen=True)
class SequenceStep:
    """What one step gave to one sequence, on the host: emitted tokens, accepted nodes, depth of the tree."""

    tokens: list[int]
    path: list[int]
    depth: int


@dataclass(frozen=True)
class TreeOutput:
    """What the target gave for the nodes of the trees; either `logits` or `verified` is None.

    Attributes:
        read: hidden states [B, N, W] of the kind that the draft reads.
        logits: [B, N, V].
        verified: what was accepted, where the graph that ran the nodes has verified them, too.
    """

    read: Tensor
    logits: Tensor | None = None
    verified: Verified | None = None


def draft_tree(engine: Engine, batch: Batch, drafter: Drafter) -> TokenTree:
    """Grow the trees; a sequence without room for one gets its root alone."""
    batch.sampler.expect(drafter.max_depth)
    furthest = engine.target.longest_run - drafter.max_depth
    full = [length >= furthest for length in batch.cache.lengths]
    if all(full):
        return TokenTree.root_only(batch.root.unsqueeze(1))
    most = chunk_size(engine.prefill_chunk, len(full), batch.cache.length)
    tree = None if engine.captured is None else engine.captured.draft(batch, drafter, most)
    if tree is None:
        rows = list(zip(full, batch.sequences, strict=True))
        tree = drafter.grow(
            DraftInput(
                root=batch.root,
                sampler=batch.sampler,
                catch_up=lambda: batch.catch_up(most),
                texts=lambda: [None if no_room else one.repeating for no_room, one in rows],
            )
        )
    return tree.without(torch.tensor(full, device=batch.root.device)[:, None]) if any(full) else tree


def run_tree(engine: Engine, batch: Batch, tree: TokenTree) -> TreeOutput:
    """Run the nodes of the trees through the target."""
    if engine.captured is not None:
        return engine.captured.run_tree(batch, tree)
    cache, nodes = batch.cache, tree.tokens.shape[1]
    plain = nodes == 1 and cache.uniform
    positions = cache.positions(1) if nodes == 1 else cache.positions(1) + tree.depths
    mask = None if plain else cache.attention_mask(tree.ancestor_mask)
    cache.begin(nodes)
    output = engine.target.forward(tree.tokens, positions, cache, mask, engine.hidden_state)
    return TreeOutput(output.read, engine.target.logits(output.hidden))


def verify_tree(batch: Batch, tree: TokenTree, output: TreeOutput) -> Verified:
    """Verify the trees by what `run_tree` gave: token matching, or recursive rejection sampling for drawn trees."""
    if output.verified is not None:
        return output.verified
    logits = output.logits
    assert logits is not None, "what is not verified has logits"
    sampler, nodes, on_host = batch.sampler, tree.tokens.shape[1], logits.device.type == _HOST
    if tree.draws is not None:
        numbers = sampler.test_numbers(nodes), sampler.gumbels(tree.max_depth)
        if on_host:
            return verify_drawn_on_host(tree, partial(_probs_after, sampler, logits, tree), *numbers)
        return verify_drawn(tree, sampler.target_probs(logits.double(), tree), *numbers)
    choices = sampler.choose(logits, tree)
    if nodes == 1:
        return Verified(torch.zeros_like(choices), torch.ones_like(choices[:, 0]), choices)
    return verify_on_host(tree, choices) if on_host else verify(tree, choices)


def _probs_after(sampler: Sampler, logits: Tensor, tree: TokenTree, paths: Tensor) -> Tensor:
    """The target's distribution at the last nodes of paths Long [B, A] of the trees, float64 [B, V]."""
    shape = TreeShape.chain(paths.shape[1] - 1) if paths.shape[1] > 1 else TreeShape()
    chain = TokenTree.from_shape(shape, tree.tokens.gather(1, paths))
    on_path = logits.gather(1, paths.unsqueeze(2).expand(-1, -1, logits.shape[2]))
    return sampler.last_probs(on_path.double(), chain)


def to_host(verified: Verified, tree: TokenTree) -> list[SequenceStep]:
    """Bring what was verified to the host: the one transfer of a step from the device."""
    if tree.tokens.shape[1] == 1:
        return [SequenceStep(token, [0], 0) for token in verified.tokens.tolist()]
    depths, width = tree.depths.amax(1, keepdim=True), verified.path.shape[1]
    packed = torch.cat((verified.counts.unsqueeze(1), depths, verified.tokens, verified.path), dim=1).tolist()
    return [
        SequenceStep(row[2 : 2 + count], row[2 + width : 2 + width + count], depth)
        for row in packed
        for count, depth in [row[:2]]
    ]


def keep(batch: Batch, read: Tensor, verified: Verified, counts: list[int]) -> None:
    """Keep what was accepted, and leave it for the draft to take in."""
    longest = max(counts)
    path = verified.path[:, :longest]
    batch.cache.keep(path, counts)
    batch.sampler.commit(verified.tokens, verified.counts)
    batch.root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1).squeeze(1)
    if batch.session is not None:
        index = path.unsqueeze(-1).expand(-1, -1, read.shape[-1])
        # A copy: the memory of a graph's outputs is written again in the next step.
        batch.pending.append(read.gather(1, index), verified.tokens[:, :longest].clone(), counts)
