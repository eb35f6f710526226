"""Prompt lookup: the end of a text is found earlier in it, and the tokens after that place are proposed.

The draft does not run; the only cost of a proposed token is its place in the target's pass (LLMA, 2304.04487).
"""

from typing import Annotated, Any

import torch
from pydantic import Field

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.tree import Tree
from clover.drafts.ngrams import RepeatingText
from clover.sampling import GrammarState
from clover.tree import TokenTree, TreeShape
from clover.tree.shape import MOST
from clover.validation import checked

_RATES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.95)  # the assumed rates for matches of 3, 4, 8, 16, 32 and 64 tokens
_MEMORY, _WEIGHT = 256.0, 8.0  # the tokens over which rates are averaged, and the weight of the assumed rates


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
    """Proposes a chain of `length` tokens in each sequence that repeats itself, and nothing in the others.

    Under a grammar it proposes these tokens as long as the grammar allows them, then those that the grammar forces.
    """

    def __init__(self, length: int):
        self.max_depth, self.max_nodes, self.copies = length, length + 1, True

    def grow(self, batch: DraftInput) -> TokenTree:
        root, texts = batch.root, batch.texts()
        found = [[] if text is None else text.following(self.max_depth) for text in texts]
        for row, state in enumerate(batch.sampler.grammar_states):
            if state is not None and texts[row] is not None:
                found[row] = _allowed(found[row], state, self.max_depth)
        if not any(found):
            return TokenTree.root_only(root)
        size = max(map(len, found))
        tokens = torch.tensor(
            [[*tokens, *[0] * (size - len(tokens))] for tokens in found], device=root.device
        )
        tree = TokenTree.from_shape(TreeShape.chain(size), torch.cat((root, tokens), dim=1))
        if all(len(tokens) == size for tokens in found):
            return tree
        lengths = torch.tensor([[len(tokens)] for tokens in found], device=root.device)
        return tree.without(torch.arange(size + 1, device=root.device) > lengths)


def _allowed(tokens: list[int], state: GrammarState | None, most: int) -> list[int]:
    """Return tokens as long as a grammar allows them, then the tokens that the grammar forces."""
    found, copied = list[int](), iter(tokens)
    while len(found) < most and state is not None:
        token = next(copied, None)
        if token is None or state.after(token) is None:
            copied, token = iter(()), state.only
        if token is None:
            break
        found.append(token)
        state = state.after(token)
    return found


class LookupAcceptance:
    """The yield of prompt lookup by the number of matching tokens, learnt from every token, whatever proposed it."""

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
        """Return the expected tokens of a step that copies `length` tokens after `match` equal ones, bonus included."""
        reached, total = 1.0, 1.0
        for at in range(length if match else 0):
            place = self._class(match + at)
            reached *= self._right[place] / self._tried[place]
            total += reached
        return total

    def _class(self, match: int) -> int:
        return min(match.bit_length(), 7) - 2
