"""Check on a few tokens that an exact target gives a token the same bits, however many are computed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clover.cpu.elementwise import functions_are_alike
from clover.target.cached_model import CachedModel
from clover.target.probe import PATH, TEXT, PlainRun, run_tree


def why_inexact(target: CachedModel, plain: PlainRun) -> str | None:
    """Return why tokens have other bits in a tree, or one by one, than in plain text; None if they have the same."""
    if not functions_are_alike():
        return "this processor computes exponentials differently at different places of a tensor"
    if target.copied is not None and target.copied.left:
        return f"{next(iter(target.copied.left))} is not a linear layer and stays as it is"
    if target.copied is not None and (uneven := target.copied.why_uneven()):
        return uneven
    with _outputs(target.layers) as layers:
        target.train_forward(plain.text)
        whole = [output[:, TEXT:] for output in _taken(layers)]
        tree = run_tree(target, plain)
        nodes = [output[:, PATH] for output in _taken(layers)[-len(whole) :]]
        alone = _one_by_one(target, plain.text)
        single = _taken(layers)
    count, length = len(whole), plain.text.shape[1]
    rows = [torch.cat(single[index::count], dim=1)[:, TEXT:] for index in range(count)]
    for index, outputs in enumerate(zip(whole, nodes, rows, strict=True)):
        if not _equal(*outputs):
            return f"layer {index} rounds differently with another number of tokens"
    hidden = plain.hidden[:, TEXT:], tree.hidden[:, PATH], alone[:, TEXT:length]
    if not _equal(*hidden) or not _equal(*map(target.logits, hidden), plain.logits[:, TEXT:]):
        return "the norm or lm_head after the layers rounds differently with another number of tokens"
    return None


def _one_by_one(target: CachedModel, tokens: Tensor) -> Tensor:
    """Return the hidden states [1, T, H] of tokens Long [1, T]; those after the text run one by one."""
    cache, found = target.new_cache(1, 1), []
    for part in (tokens[:, :TEXT], *tokens[:, TEXT:].split(1, dim=1)):
        count = part.shape[1]
        cache.begin(count)
        found.append(target.forward(part, cache.positions(count), cache).hidden)
        cache.commit([count])
    return torch.cat(found, dim=1)


def _equal(first: Tensor, *others: Tensor) -> bool:
    return all(torch.equal(first, other) for other in others)


@contextmanager
def _outputs(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Collect the outputs of layers, in the order of their runs, inside a ``with`` block."""
    found: list[Tensor] = []

    def collect(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        found.append(output if isinstance(output, Tensor) else output[0])

    handles = [layer.register_forward_hook(collect) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _taken(found: list[Tensor]) -> list[Tensor]:
    taken = found.copy()
    found.clear()
    return taken
