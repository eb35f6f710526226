"""One decoding step: draft, run, verify, keep. Read `Runner.step` first.

Plain decoding is the same step with trees that are a root alone. `clover.reference` is this step for one sequence,
without what makes it fast.

Shapes: B batch, N nodes of a tree, A nodes of an accepted path, W width of the hidden states that the draft reads,
V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafting import Drafter
from clover.engine.batch import Batch
from clover.engine.timing import timed
from clover.engine.uncommitted import Uncommitted
from clover.engine.verifiers import verifier_for
from clover.target import TargetModel
from clover.tree import TokenTree
from clover.verify import Verified


@dataclass(frozen=True)
class TreeOutput:
    """What the target computed at the nodes of the trees.

    Attributes:
        hidden: [B, N, W], hidden states of the kind that the draft reads.
        logits: [B, N, V].
    """

    hidden: Tensor
    logits: Tensor


@dataclass(frozen=True)
class StepResult:
    """What one decoding step gave to each sequence of the batch, on the host but for `tree` and `output`.

    Attributes:
        tree: the trees that were verified.
        output: what the target computed at their nodes.
        tokens: emitted tokens: those of the accepted nodes, and the bonus token.
        paths: accepted nodes from the root down.
        depths: depth of each tree, 0 where nothing was drafted.
    """

    tree: TokenTree
    output: TreeOutput
    tokens: list[list[int]]
    paths: list[list[int]]
    depths: list[int]


class Runner:
    """Runs the decoding steps of batches; it has no state of its own.

    Args:
        target: the model whose text is written.
        hidden_state: kind of the hidden states that the draft reads.
    """

    def __init__(self, target: TargetModel, hidden_state: str):
        self.target, self.hidden_state = target, hidden_state
        self._verifier = verifier_for(target.device)

    def step(self, batch: Batch, drafter: Drafter) -> StepResult:
        """Decode one step: each sequence emits the accepted tokens of its tree and the bonus token."""
        tree = self.draft(batch, drafter)
        output = self.run(batch, tree)
        verified = self.verify(batch, tree, output)
        return self.keep(batch, tree, output, verified)

    @timed("draft")
    def draft(self, batch: Batch, drafter: Drafter) -> TokenTree:
        """Grow one tree per sequence; a root alone where the text has no room for more, or is decoded plainly."""
        batch.sampler.expect(drafter.max_depth)
        furthest = self.target.longest_run - drafter.max_depth
        lengths = zip(batch.sequences, batch.cache.lengths, strict=True)
        alone = [one.request.plain or length >= furthest for one, length in lengths]
        if all(alone):
            return TokenTree.root_only(batch.root.unsqueeze(1))
        tree = self.grow(batch, drafter)
        return tree.without(torch.tensor(alone, device=batch.root.device)[:, None]) if any(alone) else tree

    def grow(self, batch: Batch, drafter: Drafter) -> TokenTree:
        """Let the drafter grow one tree per sequence."""
        return drafter.grow(batch)

    @timed("verify")
    def run(self, batch: Batch, tree: TokenTree) -> TreeOutput:
        """Run the nodes of the trees through the target."""
        cache, nodes = batch.cache, tree.tokens.shape[1]
        plain = nodes == 1 and cache.uniform
        positions = cache.positions(1) if nodes == 1 else cache.positions(1) + tree.depths
        mask = None if plain else cache.attention_mask(tree.ancestor_mask)
        cache.begin(nodes)
        output = self.target.forward(tree.tokens, positions, cache, mask, self.hidden_state)
        return TreeOutput(output.read, self.target.logits(output.hidden))

    def run_text(self, batch: Batch, tokens: Tensor, counts: list[int]) -> Tensor:
        """Run plain text through the target for the first rows of a batch; return hidden states [R, T, W].

        Args:
            tokens: Long [R, T], of which row b has `counts[b]`; the rest is padding, which is not kept.
        """
        cache, size = batch.cache, tokens.shape[1]
        with cache.first_rows(len(tokens)):
            # padding may reach beyond the last position that the target knows
            positions = cache.positions(size).clamp(max=self.target.longest_run - 1)
            cache.begin(size)
            hidden = self.target.forward(tokens, positions, cache, None, self.hidden_state).read
            cache.commit(counts)
        return hidden

    @timed("accept")
    def verify(self, batch: Batch, tree: TokenTree, output: TreeOutput) -> Verified:
        """Decide how far down each tree the target's own tokens lead."""
        return self._verifier(batch.sampler, tree, output.logits)

    @timed("keep")
    def keep(self, batch: Batch, tree: TokenTree, output: TreeOutput, verified: Verified) -> StepResult:
        """Keep the accepted paths, in the target's cache and for the draft to commit; the rest is forgotten."""
        result = _on_host(tree, output, verified)
        counts = list(map(len, result.tokens))
        path, tokens = verified.path[:, : max(counts)], verified.tokens[:, : max(counts)]
        batch.cache.keep(path, counts)
        batch.sampler.commit(verified.tokens, verified.counts)
        batch.root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1).squeeze(1)
        if batch.session is not None:
            index = path.unsqueeze(-1).expand(-1, -1, output.hidden.shape[-1])
            batch.uncommitted.append(Uncommitted(output.hidden.gather(1, index), tokens, counts))
        return result

    def cache_sizes(self, sequences: int, most: int, prompt: int, text: int, nodes: int) -> tuple[int, int]:
        """Return the rows and slots of a new batch's caches.

        Args:
            sequences: those that the batch begins with.
            most: sequences that may run at once.
            prompt: tokens of the longest prompt.
            text: tokens that each sequence is given room for.
            nodes: nodes of the largest tree.
        """
        return sequences, min(text, self.target.longest_run) + nodes


def _on_host(tree: TokenTree, output: TreeOutput, verified: Verified) -> StepResult:
    """Bring what was verified to the host: the one transfer of a step from the device."""
    width, depths = verified.path.shape[1], tree.depths.amax(1, keepdim=True)
    packed = torch.cat((verified.counts.unsqueeze(1), depths, verified.tokens, verified.path), dim=1).tolist()
    return StepResult(
        tree,
        output,
        tokens=[row[2 : 2 + row[0]] for row in packed],
        paths=[row[2 + width : 2 + width + row[0]] for row in packed],
        depths=[row[1] for row in packed],
    )
