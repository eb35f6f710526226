"""Prompt lookup: what followed the end of a text where it stood before is proposed, and the draft is not asked.

A looked-up token costs its place in the target's pass and nothing else (LLMA, 2304.04487).
"""

from typing import Annotated, Any

import torch
from pydantic import Field

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.tree import Tree
from clover.drafts.ngrams import RepeatingText
from clover.tree import TokenTree, TreeShape
from clover.tree.shape import MOST
from clover.validation import checked

_RATES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.95)  # assumed where 3, 4, 8, 16, 32 and 64 tokens match
_MEMORY, _WEIGHT = 256.0, 8.0  # tokens that rates are averaged over, and that the assumed ones count for


@checked
class LookupTree(Tree):
    """A chain of up to `length` tokens copied from the text; no draft is needed."""

    length: Annotated[int, Field(ge=1, le=MOST)] = 10

    word = "lookup"
    example = "lookup"
    needs_draft = False
    fixed_size = False
    tunable = False

    def drafter(self, draft: Any = None) -> "LookupDrafter":
        return LookupDrafter(self.length)


class LookupDrafter(Drafter):
    """Proposes a chain of `length` tokens in each sequence that repeats itself, and nothing in the others."""

    def __init__(self, length: int):
        self.max_depth, self.max_nodes, self.copies = length, length + 1, True
        self._shape = TreeShape.chain(length)

    def grow(self, batch: DraftInput) -> TokenTree:
        root = batch.root
        found = [[] if text is None else text.following(self.max_depth) for text in batch.texts()]
        if not any(found):
            return TokenTree.root_only(root)
        tokens = torch.tensor([tokens or [0] * self.max_depth for tokens in found], device=root.device)
        tree = TokenTree.from_shape(self._shape, torch.cat((root, tokens), dim=1))
        missing = torch.tensor([[not tokens] for tokens in found], device=root.device)
        return tree if all(found) else tree.without(missing)


class LookupAcceptance:
    """Tokens that prompt lookup yields, by how many tokens match; learnt from every token, whatever proposed it."""

    def __init__(self) -> None:
        self._right = [rate * _WEIGHT for rate in _RATES]
        self._tried = [_WEIGHT] * len(_RATES)

    def learn(self, text: RepeatingText) -> None:
        """Learn from the tokens that were added to the text since the last call."""
        for match, right in text.judged:
            at = self._class(match)
            kept = 1 - 1 / _MEMORY
            self._right[at] = kept * self._right[at] + right
            self._tried[at] = kept * self._tried[at] + 1
        text.judged.clear()

    def tokens(self, match: int, length: int) -> float:
        """Return the tokens expected of a step that looks up `length` tokens where `match` agree, bonus included."""
        reached, total = 1.0, 1.0
        for at in range(length if match else 0):
            place = self._class(match + at)
            reached *= self._right[place] / self._tried[place]
            total += reached
        return total

    def _class(self, match: int) -> int:
        return min(match.bit_length(), 7) - 2
