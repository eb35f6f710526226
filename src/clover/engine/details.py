"""Make the events of a step, with log-probabilities and drafted trees for requests that want them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clover.engine.requests import Drafted, StepEvent, TokenLogprobs
from clover.engine.runner import StepResult
from clover.engine.sequences import RunningSequence
from clover.tree import TokenTree


def events_of(sequences: Sequence[RunningSequence], result: StepResult, copied: bool) -> list[StepEvent]:
    """Append the tokens of a step to the sequences, and return one event per sequence.

    `copied` is True if prompt lookup copied the trees from the texts.
    """
    events = []
    for row, one in enumerate(sequences):
        path, request = result.paths[row], one.request
        one.error = result.errors[row]
        event = one.accept(result.tokens[row], path, result.depths[row], result.usable[row])
        if request.logprobs is not None and event.tokens:
            assert result.output.logits is not None
            logits = result.output.logits[row, path[: len(event.tokens)]]
            event = replace(event, logprobs=_logprobs(logits, event.tokens, request.logprobs))
        if request.show_trees:
            event = replace(event, drafted=_drafted(result.tree, row, path, copied))
        events.append(event)
    return events


def _logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of tokens [T] and of the `count` most probable tokens, from logits [T, V]."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    top = logprobs.topk(min(count, logprobs.shape[1]))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
    return tuple(map(TokenLogprobs, chosen, tops))


def _drafted(tree: TokenTree, row: int, path: Sequence[int], copied: bool) -> Drafted:
    """Return the tree of one sequence without its root and its padding."""
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    nodes = [node for node, parent in enumerate(parents) if parent >= 0]
    place = {node: at for at, node in enumerate(nodes)} | {0: -1}
    return Drafted(
        tokens=tuple(tokens[node] for node in nodes),
        parents=tuple(place[parents[node]] for node in nodes),
        path=tuple(place[node] for node in path[1:]),
        copied=copied,
    )
