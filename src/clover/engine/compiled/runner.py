"""Decoding steps as graphs of fixed shape, for `torch.compile` and CUDA graphs.

A step has two graphs. In the first the draft commits the last step's positions and grows its tree. In the second the
target runs the tree and, if all sequences choose the most probable token, verifies it. Rows, nodes, positions and the
caches' slots are padded to a few sizes, so that few graphs serve all steps. Text lengths are tensors (`FixedCache`).

The rest runs without compilation: prompts, most of a long backlog, drawn and confident trees, prompt lookup, sampling,
and the moves of accepted entries in the cache.

Shapes: B batch, N nodes, A uncommitted positions, V vocabulary, W width of the hidden states that the draft reads; B',
N' and A' with padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.cache.rows import on_device, power_of_two
from clover.drafting import CommittedInput, Drafter, StaticDrafter
from clover.engine.batch import Batch
from clover.engine.compiled.cache import FixedCache, run_fixed
from clover.engine.compiled.padding import filled, filled_tree, node_size
from clover.engine.runner import Runner, StepResult
from clover.engine.timing import timed
from clover.engine.verifiers import finite_counts
from clover.errors import UserError
from clover.sampling import GumbelNoise
from clover.sampling.numbers import most_probable
from clover.target import Target, TargetModel, TargetOutput
from clover.target.decoder import DecoderStack
from clover.target.session import CachedSession
from clover.target.support import check_fixed_shapes
from clover.tree import TokenTree
from clover.verify import Verified, verify

_GRAPHS = 256  # The most graphs of one function. PyTorch's limit of 8 is too low for all padded sizes.
_Storage = tuple[Tensor, ...]  # The storage of a `KVCache`.


class _GraphInput(NamedTuple):
    """The inputs of the draft's graph: padded `Uncommitted` positions, and the inputs from which the tree grows."""

    hidden: Tensor
    next_tokens: Tensor
    counts: Tensor
    root: Tensor
    noise: GumbelNoise
    lengths: Tensor
    storage: _Storage


@dataclass(frozen=True)
class _GraphOutput(TargetOutput):
    """The outputs of the target's graph: verified trees or logits; the other one is None."""

    verified: Verified | None = None


def check_compiled(compile: bool | str, weights: str | None, exact: bool) -> None:
    """Raise UserError if steps are compiled for a target with other weights, or with exact texts."""
    if compile and (exact or weights is not None):
        raise UserError("compiled steps support neither int8 weights nor --exact; leave out --compile")


class CompiledRunner(Runner):
    """A `Runner` with a compiled draft and target; UserError for unknown backends, and targets that it cannot compile.

    Args:
        draft: the draft in the form for inference; None for plain decoding.
        max_depth: depth of the deepest tree.
        backend: the backend of `torch.compile`. With the default, "inductor", a GPU replays CUDA graphs.
    """

    def __init__(
        self, target: Target, hidden_state: str, draft: object, max_depth: int, backend: str
    ) -> None:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise UserError(f"torch.compile has no backend {backend!r}; it has {', '.join(known)}")
        if not isinstance(target, TargetModel):
            raise UserError(f"{target.name} is not a transformers model; only these can be compiled")
        check_compiled(True, target.weights, target.copied is not None)
        check_fixed_shapes(target.config)
        super().__init__(target, hidden_state)
        self._model = target
        self._taps, self._width = target.taps(hidden_state), node_size(max_depth + 1)
        self._replays = backend == "inductor" and target.device.type == "cuda"
        if isinstance(draft, nn.Module):
            for module in draft.modules():
                if isinstance(module, DecoderStack):
                    _ = module.input_scale  # This runs the layers to measure it, which no graph can contain.
        self._run_target = self._compiled(self._forward, backend)
        self._run_draft = self._compiled(self._commit_and_grow, backend)

    def rows(self, sequences: int, most: int) -> int:
        return power_of_two(most)

    def step(self, batch: Batch, drafter: Drafter) -> StepResult:
        if self._replays:  # Outputs of the graphs in earlier steps may now be overwritten.
            torch.compiler.cudagraph_mark_step_begin()
        return super().step(batch, drafter)

    def grow(self, batch: Batch, drafter: Drafter) -> TokenTree:
        """Let the draft commit the uncommitted positions and grow trees, in one graph if possible.

        If there are more positions than a graph commits, the earlier ones run without compilation. Under a grammar
        nothing is compiled, because after each depth the host decides which tokens may follow.
        """
        session = batch.draft
        if session is None or not drafter.max_expanded or batch.sampler.grammar_states:
            return super().grow(batch, drafter)
        *earlier, (hidden, next_tokens, counts) = batch.take_uncommitted(self._width)
        for part in earlier:
            session.commit(*part)
        rows, size = len(counts), row_size(batch)
        session.cache.begin_fixed(self._width, self._width + max(drafter.max_nodes, drafter.max_expanded))
        noise = batch.sampler.gumbel_noise(drafter.max_depth, drafter.d2t)
        draft_input = _GraphInput(
            hidden=filled(hidden, (size, self._width)),
            next_tokens=filled(next_tokens, (size, self._width)),
            counts=on_device([*counts, *[0] * (size - rows)], hidden.device),
            root=filled(batch.root, (size, 1)),
            noise=GumbelNoise(
                filled(noise.temperatures, (size,), 1.0),
                None if noise.numbers is None else filled(noise.numbers, (size,)),
            ),
            lengths=session.cache.row_lengths(size),
            storage=_static(session.cache.storage),
        )
        grown = self._run_draft(session, drafter, draft_input)
        session.cache.commit(counts)
        real = [values[:rows] for values in grown]
        if isinstance(drafter, StaticDrafter):
            return TokenTree.from_shape(drafter.shape, real[0])
        return TokenTree(*real, max_depth=drafter.max_depth)

    @timed("run")
    def run(self, batch: Batch, tree: TokenTree) -> TargetOutput:
        """Run the nodes of the trees, and verify them if all sequences choose the most probable tokens."""
        cache, (rows, nodes) = _cache(batch), tree.tokens.shape
        sizes = row_size(batch), node_size(nodes)
        cache.begin_fixed(sizes[1], sizes[1])
        reads_logits = any(one.request.logprobs is not None for one in batch.sequences)
        verifies = batch.sampler.takes_most_probable and tree.draws is None and not reads_logits
        padded, lengths = filled_tree(tree, *sizes), cache.row_lengths(sizes[0])
        with self._taps.active():
            hidden, *found = self._run_target(padded, lengths, _static(cache.storage), verifies)
        hidden = hidden[:rows, :nodes]
        if not verifies:
            return _GraphOutput(hidden, found[0][:rows, :nodes])
        # Clone, because the next step overwrites the outputs of a graph.
        return _GraphOutput(hidden, None, Verified(*(values[:rows].clone() for values in found)))

    def verify(self, batch: Batch, tree: TokenTree, output: TargetOutput) -> Verified:
        assert isinstance(output, _GraphOutput)
        if output.verified is not None:
            return output.verified
        return super().verify(batch, tree, output)

    # -- what is traced --------------------------------------------------------------------------------------------

    def _forward(
        self, tree: TokenTree, lengths: Tensor, storage: _Storage, verifies: bool
    ) -> tuple[Tensor, ...]:
        """Return hidden states, and the logits or, with `verifies`, the tensors of `Verified`."""
        cache = FixedCache(storage, lengths, self.target.longest_run)
        output = run_fixed(self._model, tree, cache, self._taps)
        logits = self._model.logits(output.hidden)
        if not verifies:
            return output.draft_hidden_states, logits
        verified = verify(tree, most_probable(logits))
        finite = finite_counts(logits, verified)
        return output.draft_hidden_states, verified.path, verified.counts, verified.tokens, finite

    def _commit_and_grow(self, session: Any, drafter: Any, draft_input: _GraphInput) -> tuple[Tensor, ...]:
        """Return the tensors of the trees in the order of `TokenTree`; only the tokens for static trees."""
        cache = FixedCache(draft_input.storage, draft_input.lengths, self.target.longest_run)
        session = session.over(cache)
        logits = session.commit(draft_input.hidden, draft_input.next_tokens, draft_input.counts)
        committed = CommittedInput(draft_input.root, draft_input.noise, session, logits.unsqueeze(1))
        if isinstance(drafter, StaticDrafter):
            return (drafter.fill(committed),)
        tree = drafter.grow(committed)
        return tree.tokens, tree.parents, tree.depths, tree.ancestor_mask

    def _compiled(self, function: Callable[..., Any], backend: str) -> Callable[..., Any]:
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _GRAPHS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * _GRAPHS)
        mode = "reduce-overhead" if self._replays else None
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend, mode=mode)


def row_size(batch: Batch) -> int:
    """Return the number of rows of a padded batch: a power of two, unless the caches have fewer rows."""
    return min(power_of_two(len(batch.sequences)), _cache(batch).storage[0].shape[1])


def _cache(batch: Batch) -> KVCache:
    """Return the cache of a batch's target, into which graphs write."""
    assert isinstance(batch.target, CachedSession)
    return batch.target.cache


def _static(storage: _Storage) -> _Storage:
    """Mark tensors of a cache as static in memory, so that graphs write into them and not into copies; return them."""
    for tensor in storage:
        torch._dynamo.mark_static_address(tensor, guard=False)
    return storage
