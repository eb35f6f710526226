"""Drives a draft's session through ragged commits, trees, crops and drops, and compares every call with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.families import VOCAB

# (hidden states [L, W], the L + 1 tokens of the text, drafted tokens) -> logits [V] after the last of them
Reference = Callable[[Tensor, list[int], list[int]], Tensor]
EXACT = {"rtol": 1e-6, "atol": 1e-8}


class Walk:
    """A session of one row per text, and what it should have seen.

    Args:
        hidden: [B, T, W] what the target says about the texts.
        tokens: Long [B, T + 1].
        letters: different tokens that are drafted.
    """

    def __init__(
        self, session: Any, hidden: Tensor, tokens: Tensor, reference: Reference, letters: int = VOCAB
    ):
        self.letters = letters
        self.session, self.hidden, self.tokens, self.reference = session, hidden, tokens, reference
        self.texts = list(range(len(tokens)))  # which text each row holds
        self.paths: list[list[list[int]]] = []  # [B][P] of the frontier
        self.exact = EXACT
        self.draw = torch.Generator().manual_seed(0)

    def commit(self, counts: list[int]) -> None:
        width, before = max(counts), self.session.lengths
        pairs = [(t, slice(n, n + width)) for t, n in zip(self.texts, before, strict=True)]
        hidden = torch.stack([self.hidden[t, part] for t, part in pairs])
        following = torch.stack([self.tokens[t, part.start + 1 : part.stop + 1] for t, part in pairs])
        logits = self.session.commit(hidden, following, counts)
        assert self.session.lengths == [n + count for n, count in zip(before, counts, strict=True)]
        self.paths = [[[]] for _ in counts]
        self._check(logits.unsqueeze(1))

    def advance(self, nodes: int) -> None:
        shape = (len(self.texts), nodes)
        slots = torch.randint(len(self.paths[0]), shape, generator=self.draw)
        tokens = torch.randint(self.letters, shape, generator=self.draw)
        self.paths = [
            [[*paths[slot], token] for slot, token in zip(*row, strict=True)]
            for paths, *row in zip(self.paths, slots.tolist(), tokens.tolist(), strict=True)
        ]
        self._check(self.session.advance(slots, tokens))

    def drop(self, row: int) -> None:
        self.session.drop(row)
        self.texts[row] = self.texts[-1]
        self.texts.pop()

    def _check(self, logits: Tensor) -> None:
        for row, (text, length) in enumerate(zip(self.texts, self.session.lengths, strict=True)):
            known = self.tokens[text, : length + 1].tolist()
            for node, path in enumerate(self.paths[row]):
                expected = self.reference(self.hidden[text, :length], known, path)
                torch.testing.assert_close(logits[row, node], expected, **self.exact)


@torch.no_grad()
def walk_everywhere(
    new_session: Callable[[int, int], Any],
    hidden: Tensor,
    reference: Reference,
    tokens: Tensor,
    exact: dict[str, float] = EXACT,
    letters: int = VOCAB,
) -> None:
    """Texts of 3 rows and at least 14 tokens: every call of a session, in every order that the engine uses."""
    # no room: it grows in the middle of the first tree
    walk = Walk(new_session(3, 1), hidden, tokens, reference, letters)
    walk.exact = exact
    walk.commit([4, 2, 3])
    for nodes in (3, 4, 2, 3):
        walk.advance(nodes)
    walk.commit([1, 3, 2])
    for nodes in (2, 1, 2):
        walk.advance(nodes)
    walk.drop(0)
    walk.session.crop([3, 2])
    walk.commit([2, 3])
    for nodes in (4, 1, 3, 1):  # rows of one length, and lone nodes that do not see all that is drafted
        walk.advance(nodes)
    walk.session.crop([1, 4])
    walk.commit([3, 1])
    for _ in range(9):  # deeper than any draft is trained
        walk.advance(2)
