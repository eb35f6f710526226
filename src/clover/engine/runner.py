"""One decoding step: draft, run, verify, keep. Read `Runner.step` first.

Plain decoding is the same step with trees of one node, the root. `clover.reference` is a simple version of this step
for one sequence.

Shapes: B batch, N nodes of a tree, A nodes of an accepted path, W width of the hidden states that the draft reads,
V vocabulary.
"""

from dataclasses import dataclass, replace

import torch

from clover.drafting import Drafter
from clover.engine.batch import Batch
from clover.engine.timing import timed
from clover.engine.uncommitted import Uncommitted
from clover.engine.verifiers import finite_counts, verifier_for
from clover.target import Target, TargetOutput
from clover.tree import TokenTree
from clover.verify import Verified


@dataclass(frozen=True)
class StepResult:
    """The result of one decoding step for each sequence of the batch; all but `tree` and `output` is on the host.

    Attributes:
        tree: the trees that were verified.
        output: the target's output at their nodes.
        tokens: emitted tokens: those of the accepted nodes, and the bonus token.
        paths: accepted nodes from the root down.
        depths: depth of each tree, 0 if nothing was drafted.
        usable: number of emitted tokens before the first one that cannot be chosen.
        errors: why that token cannot be chosen; "" if its logits are NaN or infinite.
    """

    tree: TokenTree
    output: TargetOutput
    tokens: list[list[int]]
    paths: list[list[int]]
    depths: list[int]
    usable: list[int]
    errors: list[str]


class Runner:
    """Runs the decoding steps of batches; it has no state of its own.

    Args:
        target: the model whose text is written.
        hidden_state: kind of the hidden states that the draft reads.
    """

    def __init__(self, target: Target, hidden_state: str):
        self.target, self.hidden_state = target, hidden_state
        self._verifier = verifier_for(target.device)

    def step(self, batch: Batch, drafter: Drafter) -> StepResult:
        """Decode one step: each sequence emits the accepted tokens of its tree and the bonus token.

        If a token cannot be chosen, the cause may be a drafted token that plain decoding never runs: masked attention
        multiplies its values by 0, and 0 * NaN is NaN. Such sequences run again without drafted tokens.
        """
        tree = self.draft(batch, drafter)
        output = self.run(batch, tree)
        verified = self.verify(batch, tree, output)
        result = self.read(batch, tree, output, verified)
        broken = [usable < len(tokens) for usable, tokens in zip(result.usable, result.tokens, strict=True)]
        if any(broken):
            for row in (row for row, one in enumerate(broken) if one):
                batch.target.clear(row, batch.target.lengths[row])
            tree = tree.alone(torch.tensor(broken, device=batch.root.device))
            output = self.run(batch, tree)
            verified = self.verify(batch, tree, output)
            result = self.read(batch, tree, output, verified)
        return self.keep(batch, verified, result)

    @timed("draft")
    def draft(self, batch: Batch, drafter: Drafter) -> TokenTree:
        """Grow one tree per sequence. It is only a root if the text has no room for more or is decoded plainly."""
        batch.sampler.expect(drafter.max_depth)
        furthest = self.target.longest_run - drafter.max_depth
        lengths = zip(batch.sequences, batch.target.lengths, strict=True)
        alone = [one.request.plain or length >= furthest for one, length in lengths]
        if all(alone):
            return TokenTree.root_only(batch.root)
        tree = self.grow(batch, drafter)
        return tree.without(torch.tensor(alone, device=batch.root.device)[:, None]) if any(alone) else tree

    def grow(self, batch: Batch, drafter: Drafter) -> TokenTree:
        """Let the drafter grow one tree per sequence."""
        return drafter.grow(batch)

    @timed("run")
    def run(self, batch: Batch, tree: TokenTree) -> TargetOutput:
        """Run the nodes of the trees through the target."""
        return batch.target.run(tree, self.hidden_state)

    @timed("verify")
    def verify(self, batch: Batch, tree: TokenTree, output: TargetOutput) -> Verified:
        """Find the path of each tree that the target's own tokens follow."""
        assert output.logits is not None
        verified = self._verifier(batch.sampler, tree, output.logits)
        return replace(verified, finite=finite_counts(output.logits, verified))

    @timed("keep")
    def read(self, batch: Batch, tree: TokenTree, output: TargetOutput, verified: Verified) -> StepResult:
        """Copy the verified tokens to the host. A step has no other transfer from the device."""
        width, depths = verified.path.shape[1], tree.depths.amax(1, keepdim=True)
        assert verified.finite is not None
        counts = torch.stack((verified.counts, verified.finite), dim=1)
        packed = torch.cat((counts, depths, verified.tokens, verified.path), dim=1).tolist()
        tokens = [row[3 : 3 + row[0]] for row in packed]
        allowed = [batch.sampler.chosen(row, some) for row, some in enumerate(tokens)]
        return StepResult(
            tree,
            output,
            tokens,
            paths=[row[3 + width : 3 + width + row[0]] for row in packed],
            depths=[row[2] for row in packed],
            usable=[min(row[1], count) for row, (count, _) in zip(packed, allowed, strict=True)],
            errors=[
                reason if count <= row[1] else ""
                for row, (count, reason) in zip(packed, allowed, strict=True)
            ],
        )

    @timed("keep")
    def keep(self, batch: Batch, verified: Verified, result: StepResult) -> StepResult:
        """Keep the accepted paths in the target's session, and queue them for the draft; forget all other nodes."""
        counts = list(map(len, result.tokens))
        path, tokens = verified.path[:, : max(counts)], verified.tokens[:, : max(counts)]
        batch.target.keep(path, counts)
        batch.sampler.commit(verified.tokens, verified.counts)
        batch.root = verified.tokens.gather(1, verified.counts.unsqueeze(1) - 1)
        if batch.draft is not None:
            hidden = result.output.draft_hidden_states
            hidden = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
            batch.add_uncommitted(Uncommitted(hidden, tokens, counts))
        return result

    def rows(self, sequences: int, most: int) -> int:
        """Return the number of rows for a new batch that starts with `sequences` and may grow to `most`."""
        return sequences
