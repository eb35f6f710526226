"""A draft that is right as often as one likes, to time steps before there is a draft to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from clover.drafting import DraftInput, StaticDrafter
from clover.tree import TokenTree

_LEAST, _MOST = 0.1, 0.95  # chance that a token on the first path is right, drawn anew for each step


class ForcedDrafter:
    """Grows a static tree with the draft, and then puts the text's own tokens on the path of first choices.

    The draft does all of its work, and the engine accepts, keeps and hands back as many tokens as it would of a trained
    draft. How many is drawn for each sequence and step.

    Args:
        drafter: grows the tree.
        texts: tokens of each sequence, in the order of the batch: the prompt, and what the target writes after it.
        seed: of how many tokens are right.
    """

    def __init__(self, drafter: StaticDrafter, texts: Sequence[Sequence[int]], seed: int = 0):
        self.max_depth, self.max_nodes = drafter.max_depth, drafter.max_nodes
        self._drafter, self._texts, self._random = drafter, texts, Random(seed)
        paths = drafter.shape.paths
        self._first = [paths.index((0,) * depth) for depth in range(1, self.max_depth + 1)]

    def grow(self, given: DraftInput) -> TokenTree:
        session, logits = given.catch_up()
        tree = self._drafter.grow(replace(given, catch_up=lambda: (session, logits)))
        tokens, chance = tree.tokens.clone(), self._random.uniform(_LEAST, _MOST)
        for row, length in enumerate(session.lengths):
            known = self._texts[row][length + 1 :]  # the draft has taken in all positions before the root
            for node, token in zip(self._first, known, strict=False):
                tokens[row, node] = token
                if self._random.random() > chance:
                    tokens[row, node] = token - 1 if token else 1
                    break
        return replace(tree, tokens=tokens)
