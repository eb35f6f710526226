"""Choose the verification rule of a tree, and the fastest form of the rule for drawn trees.

Shapes: B batch, N nodes of a tree, A nodes of a path, D depth, V vocabulary.
"""

from functools import partial

import torch
from torch import Tensor

from clover import verify, verify_host
from clover.sampling import Sampler
from clover.tree import TokenTree, TreeShape
from clover.verify import Verified


class Verifier:
    """Verifies each tree by the rule for which it was drafted; waits for the device only if the sampler does."""

    def __call__(self, sampler: Sampler, tree: TokenTree, logits: Tensor) -> Verified:
        """Verify trees by the target's logits [B, N, V] at their nodes."""
        nodes = tree.tokens.shape[1]
        if tree.draws is not None:
            numbers = sampler.test_numbers(nodes), sampler.gumbels(tree.max_depth)
            return self.verify_drawn(sampler, tree, logits, *numbers)
        choices = sampler.choose(logits, tree)
        if nodes == 1:  # This is plain decoding.
            return Verified(torch.zeros_like(choices), torch.ones_like(choices[:, 0]), choices)
        return verify.verify(tree, choices)

    def verify_drawn(
        self, sampler: Sampler, tree: TokenTree, logits: Tensor, tests: Tensor, bonus: Tensor
    ) -> Verified:
        """Verify by recursive rejection sampling."""
        return verify.verify_drawn(tree, sampler.target_probs(logits.double(), tree), tests, bonus)


class HostVerifier(Verifier):
    """Verifies drawn trees by loops on the host, for tensors on a CPU."""

    def verify_drawn(
        self, sampler: Sampler, tree: TokenTree, logits: Tensor, tests: Tensor, bonus: Tensor
    ) -> Verified:
        return verify_host.verify_drawn(tree, partial(_probs_after, sampler, logits, tree), tests, bonus)


def verifier_for(device: torch.device) -> Verifier:
    """Return the fastest verifier for a device."""
    return HostVerifier() if device.type == "cpu" else Verifier()


def _probs_after(sampler: Sampler, logits: Tensor, tree: TokenTree, paths: Tensor) -> Tensor:
    """Return the target's distributions at the last nodes of paths Long [B, A], float64 [B, V]."""
    shape = TreeShape.chain(paths.shape[1] - 1) if paths.shape[1] > 1 else TreeShape()
    chain = TokenTree.from_shape(shape, tree.tokens.gather(1, paths))
    on_path = logits.gather(1, paths.unsqueeze(2).expand(-1, -1, logits.shape[2]))
    return sampler.last_probs(on_path.double(), chain)


def finite_counts(logits: Tensor, verified: Verified) -> Tensor:
    """Count the emitted tokens before the first one with unusable logits: Long [B] from logits [B, N, V].

    Logits are unusable if one is NaN or +inf, or none is finite; -inf excludes a token.
    """
    path = verified.path
    if logits.shape[1] > 1:  # Only the nodes of the path matter; they are fewer than those of the tree.
        logits = logits[torch.arange(len(path), device=path.device).unsqueeze(1), path]
    bad = ~logits.amax(-1).isfinite()
    bad &= torch.arange(bad.shape[1], device=bad.device) < verified.counts.unsqueeze(1)
    return torch.where(bad.any(1), bad.long().argmax(1), verified.counts)
