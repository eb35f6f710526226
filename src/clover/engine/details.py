"""What a request may want to know of each step beside its tokens: log-probabilities, and the tree that was drafted."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clover.drafting import Drafter, LookupDrafter
from clover.engine.requests import Drafted, Request, StepEvent, TokenLogprobs
from clover.engine.step import SequenceStep
from clover.tree import TokenTree


def with_details(
    events: Sequence[StepEvent],
    requests: Sequence[Request],
    steps: Sequence[SequenceStep],
    tree: TokenTree,
    logits: Tensor | None,
    drafter: Drafter,
) -> list[StepEvent]:
    """The events of one step, with what their requests asked for; `logits` are [B, N, V] where any wants them."""
    told = []
    for row, (event, request, step) in enumerate(zip(events, requests, steps, strict=True)):
        if request.logprobs is not None:
            assert logits is not None
            at_path = logits[row, step.path[: len(event.tokens)]]
            event = replace(event, logprobs=_logprobs(at_path, event.tokens, request.logprobs))
        if request.show_trees:
            event = replace(event, drafted=_drafted(tree, row, step.path, isinstance(drafter, LookupDrafter)))
        told.append(event)
    return told


def _logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> tuple[TokenLogprobs, ...]:
    """Of tokens [T] by logits [T, V]."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = logprobs.topk(min(count, logprobs.shape[1]))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
    return tuple(map(TokenLogprobs, chosen, tops))


def _drafted(tree: TokenTree, row: int, path: Sequence[int], copied: bool) -> Drafted:
    """The tree of one sequence without its root and its padding."""
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    nodes = [node for node, parent in enumerate(parents) if parent >= 0]
    place = {node: at for at, node in enumerate(nodes)} | {0: -1}
    return Drafted(
        tokens=tuple(tokens[node] for node in nodes),
        parents=tuple(place[parents[node]] for node in nodes),
        path=tuple(place[node] for node in path[1:]),
        copied=copied,
    )
