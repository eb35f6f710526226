"""Drives a draft's session through commits, trees, crops and drops, and holds what it says against a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.families import VOCAB

# (hidden states [L, W], the L + 1 tokens of the text, drafted tokens)
# -> logits [V] after the text, after the first drafted token, the second, …
Reference = Callable[[Tensor, list[int], list[int]], list[Tensor]]
Expected = dict[tuple[int, ...], Tensor]  # logits by text, how much of it, and the path after it
EXACT = {"rtol": 1e-6, "atol": 1e-8}


class Walk:
    """A session of one row per text, and what it says of every path; `check` holds that against the reference.

    Args:
        hidden: [B, T, W] what the target says about the texts.
        tokens: Long [B, T + 1].
        letters: different tokens that are drafted.
    """

    def __init__(self, session: Any, hidden: Tensor, tokens: Tensor, letters: int = VOCAB):
        self.session, self.hidden, self.tokens, self.letters = session, hidden, tokens, letters
        self.texts = list(range(len(tokens)))  # which text each row holds
        self.paths: list[list[list[int]]] = []  # [B][P] of the frontier
        # of which text, how much of it, the path after it, logits [V]
        self.said: list[tuple[int, int, list[int], Tensor]] = []
        self.draw = torch.Generator().manual_seed(0)

    def commit(self, counts: list[int]) -> None:
        width, before = max(counts), self.session.lengths
        pairs = [(t, slice(n, n + width)) for t, n in zip(self.texts, before, strict=True)]
        hidden = torch.stack([self.hidden[t, part] for t, part in pairs])
        following = torch.stack([self.tokens[t, part.start + 1 : part.stop + 1] for t, part in pairs])
        logits = self.session.commit(hidden, following, counts)
        assert self.session.lengths == [n + count for n, count in zip(before, counts, strict=True)]
        self.paths = [[[]] for _ in counts]
        self._note(logits.unsqueeze(1))

    def advance(self, nodes: int) -> None:
        shape = (len(self.texts), nodes)
        slots = torch.randint(len(self.paths[0]), shape, generator=self.draw)
        tokens = torch.randint(self.letters, shape, generator=self.draw)
        self.paths = [
            [[*paths[slot], token] for slot, token in zip(*row, strict=True)]
            for paths, *row in zip(self.paths, slots.tolist(), tokens.tolist(), strict=True)
        ]
        self._note(self.session.advance(slots, tokens))

    def drop(self, row: int) -> None:
        self.session.drop(row)
        self.texts[row] = self.texts[-1]
        self.texts.pop()

    def _note(self, logits: Tensor) -> None:
        for row, (text, length) in enumerate(zip(self.texts, self.session.lengths, strict=True)):
            for node, path in enumerate(self.paths[row]):
                self.said.append((text, length, path, logits[row, node].clone()))

    def check(self, expected: Expected, exact: dict[str, float]) -> None:
        for text, length, path, logits in self.said:
            place = f"text {text} at {length}, path {path}: {{}}"
            torch.testing.assert_close(logits, expected[(text, length, *path)], **exact, msg=place.format)

    def expected(self, reference: Reference) -> Expected:
        """Longest paths first: what the reference says of one holds for all that it begins with."""
        found: Expected = {}
        for text, length, path, _ in sorted(self.said, key=lambda one: -len(one[2])):
            if (text, length, *path) not in found:
                known = self.tokens[text, : length + 1].tolist()
                for depth, logits in enumerate(reference(self.hidden[text, :length], known, path)):
                    found[(text, length, *path[:depth])] = logits
        return found


@torch.no_grad()
def walk_everywhere(
    sessions: Sequence[Callable[[int, int], Any]],
    hidden: Tensor,
    reference: Reference,
    tokens: Tensor,
    exact: dict[str, float] = EXACT,
    letters: int = VOCAB,
) -> None:
    """Texts of 3 rows and at least 14 tokens: every call of a session, in every order that the engine uses.

    All sessions go the same way, so that the reference, which is slow, has to say but once what they should find.
    """
    expected: Expected = {}
    for new_session in sessions:
        # no room: it grows in the middle of the first tree
        walk = Walk(new_session(3, 1), hidden, tokens, letters)
        go_everywhere(walk)
        expected = expected or walk.expected(reference)
        walk.check(expected, exact)


def go_everywhere(walk: Walk) -> None:
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
