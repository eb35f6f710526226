"""Decoding steps as graphs of fixed shape, for `torch.compile` and CUDA graphs (docs/development/compile.md).

Two graphs make a step: the draft takes in the last step's positions and grows its tree; the target runs the tree and,
where all sequences take the most probable token, verifies it. Rows, nodes, positions and the caches' slots are filled
up to a few sizes, so that few graphs serve all steps. The lengths of the texts are tensors (`FixedCache`).

Prompts, most of a long catching up, drawn and confident trees, prompt lookup, drafts without a `FrontierSession`,
sampling and moving what was accepted run as they do without compilation.

Shapes: B batch, N nodes, A pending positions, V vocabulary, W width of the hidden states that the draft reads; B', N'
and A' filled up.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clover.cache import KVCache
from clover.drafting import BudgetDrafter, Drafter, DraftInput, RerankDrafter, StaticDrafter
from clover.drafts.session import FrontierSession
from clover.engine.batch import Batch
from clover.engine.step import TreeOutput
from clover.errors import UserError
from clover.fixed_cache import FixedCache
from clover.sampling import GumbelNoise
from clover.sampling.numbers import most_probable
from clover.storage import fixed_capacity, on_device, power_of_two
from clover.target import TargetModel
from clover.target.decoder import DecoderStack
from clover.target.support import check_fixed_shapes
from clover.tree import TokenTree
from clover.tree.tokens import filled
from clover.verify import Verified, verify

_GRAPHS = 256  # of one function; PyTorch's own limit of 8 is for shapes that nobody counts
_Storage = tuple[Tensor, Tensor]  # keys and values


class _Growing(NamedTuple):
    """What one step gives the draft's graph: `Positions`, filled up, to take in, and what its tree grows from."""

    hidden: Tensor
    next_tokens: Tensor
    counts: Tensor
    root: Tensor
    noise: GumbelNoise
    lengths: Tensor
    storage: _Storage


class CapturedSteps:
    """The compiled parts of an engine's steps; UserError if there is no such backend, or the target cannot be compiled.

    `max_depth` and `max_nodes` are of any tree, `hidden_state` is what the draft reads. With the backend "inductor",
    `torch.compile`'s own, a GPU replays CUDA graphs.
    """

    def __init__(
        self,
        target: TargetModel,
        draft: object,
        hidden_state: str,
        max_depth: int,
        max_nodes: int,
        backend: str,
    ) -> None:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise UserError(f"torch.compile has no backend {backend!r}; it has {', '.join(known)}")
        check_fixed_shapes(target.config)
        self._target, self._taps = target, target.taps(hidden_state)
        self._width, self._max_nodes = node_size(max_depth + 1), max_nodes
        self._replays = backend == "inductor" and target.device.type == "cuda"
        if isinstance(draft, nn.Module):
            for module in draft.modules():
                if isinstance(module, DecoderStack):
                    _ = module.input_scale  # found by running the layers, which no graph can hold
        self._run_target = self._compiled(self._forward, backend)
        self._run_draft = self._compiled(self._grow, backend)

    def sizes(self, rows: int, length: int) -> tuple[int, int]:
        """Rows and slots for the first steps of a batch's caches, by its rows at most and its longest prompt."""
        return power_of_two(rows), fixed_capacity(length + self._width + self._max_nodes)

    def begin_step(self) -> None:
        """What graphs returned in earlier steps is no longer needed: its memory is written again."""
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()

    def draft(self, batch: Batch, drafter: Drafter, most: int) -> TokenTree | None:
        """Let the draft take in what is pending and grow trees; None, and nothing done, if that is not captured.

        Of more positions than a graph takes in, those before the last run as they would without, `most` at once.
        """
        session = batch.session
        # Rows of other trees depend on each other, or on random numbers that are not handed over.
        captured = type(drafter) in (StaticDrafter, BudgetDrafter, RerankDrafter)
        if not isinstance(session, FrontierSession) or not captured:
            return None
        assert isinstance(drafter, StaticDrafter | BudgetDrafter | RerankDrafter)
        *earlier, (hidden, next_tokens, counts) = batch.pending.take(most, min(most, self._width))
        for part in earlier:
            session.commit(*part)
        rows, size = len(counts), row_size(batch)
        session.cache.begin_fixed(self._width, self._width + max(drafter.max_nodes, drafter.max_expanded))
        noise = batch.sampler.gumbel_noise(drafter.max_depth, drafter.d2t)
        given = _Growing(
            hidden=filled(hidden, (size, self._width)),
            next_tokens=filled(next_tokens, (size, self._width)),
            counts=on_device([*counts, *[0] * (size - rows)], hidden.device),
            root=filled(batch.root, (size,)),
            noise=GumbelNoise(
                filled(noise.temperatures, (size,), 1.0),
                None if noise.numbers is None else filled(noise.numbers, (size,)),
            ),
            lengths=session.cache.row_lengths(size),
            storage=_storage(session.cache),
        )
        tensors = self._run_draft(session, drafter, given)
        session.cache.commit(counts)
        held = [values[:rows] for values in tensors]
        if isinstance(drafter, StaticDrafter):
            return TokenTree.from_shape(drafter.shape, held[0])
        return TokenTree(*held, max_depth=drafter.max_depth)

    def run_tree(self, batch: Batch, tree: TokenTree) -> TreeOutput:
        """Run the nodes of the trees through the target.

        It verifies them, too, where all sequences take the most probable tokens and none wants to know their
        log-probabilities.
        """
        cache, (rows, nodes) = batch.cache, tree.tokens.shape
        sizes = row_size(batch), node_size(nodes)
        cache.begin_fixed(sizes[1], sizes[1])
        wanted = any(one.request.logprobs is not None for one in batch.sequences)
        settles = batch.sampler.takes_most_probable and tree.draws is None and not wanted
        full, lengths = tree.padded(*sizes), cache.row_lengths(sizes[0])
        with self._taps.active():
            read, *found = self._run_target(full, lengths, _storage(cache), settles)
        read = read[:rows, :nodes]
        if settles:
            return TreeOutput(read, verified=Verified(*(values[:rows] for values in found)))
        return TreeOutput(read, found[0][:rows, :nodes])

    # -- what is traced --------------------------------------------------------------------------------------------

    def _forward(
        self, tree: TokenTree, lengths: Tensor, storage: _Storage, settles: bool
    ) -> tuple[Tensor, ...]:
        """Hidden states and logits; if it settles what is accepted hidden states and the tensors of `Verified`."""
        cache = FixedCache(*storage, lengths, self._target.longest_run)
        output = self._target.forward_fixed(tree.tokens, tree.depths, tree.ancestor_mask, cache, self._taps)
        logits = self._target.logits(output.hidden)
        if not settles:
            return output.read, logits
        verified = verify(tree, most_probable(logits))
        return output.read, verified.path, verified.counts, verified.tokens

    def _grow(self, session: Any, drafter: Any, given: _Growing) -> tuple[Tensor, ...]:
        """The tensors of the trees, in the order of `TokenTree`; of static trees the tokens alone."""
        session = session.on(FixedCache(*given.storage, given.lengths, self._target.longest_run))
        logits = session.commit(given.hidden, given.next_tokens, given.counts)
        asked = DraftInput(given.root, given.noise, lambda: (session, logits), tuple)
        if isinstance(drafter, StaticDrafter):
            return (drafter.fill(asked),)
        tree = drafter.grow(asked)
        return tree.tokens, tree.parents, tree.depths, tree.ancestor_mask

    def _compiled(self, function: Callable[..., Any], backend: str) -> Callable[..., Any]:
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _GRAPHS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * _GRAPHS)
        mode = "reduce-overhead" if self._replays else None
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend, mode=mode)


def row_size(batch: Batch) -> int:
    """Rows that a batch is filled up to: a power of two, unless the caches have room for fewer."""
    return min(power_of_two(len(batch.sequences)), batch.cache.storage[0].shape[1])


def node_size(nodes: int) -> int:
    """Nodes that trees are filled up to, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 …: padding is a third at most.

    >>> [node_size(nodes) for nodes in (1, 3, 5, 7, 9, 26, 64)]
    [1, 3, 6, 8, 12, 32, 64]
    """
    power = power_of_two(nodes)
    return 3 * power // 4 if power > 3 and 3 * power // 4 >= nodes else power


def _storage(cache: KVCache) -> _Storage:
    """A cache's keys and values, marked as staying where they are: graphs write into them and not into copies."""
    keys, values = cache.storage
    for tensor in (keys, values):
        torch._dynamo.mark_static_address(tensor, guard=False)
    return keys, values
