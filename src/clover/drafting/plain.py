"""Plain decoding: nothing is drafted, and each step gives one token."""

from dataclasses import dataclass
from typing import Any

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.tree import Tree
from clover.tree import TokenTree


class PlainDrafter(Drafter):
    """Plain decoding: the tree is only its root."""

    max_depth = 0
    max_nodes = 1

    def grow(self, batch: DraftInput) -> TokenTree:
        return TokenTree.root_only(batch.root)


PLAIN_DRAFTER = PlainDrafter()


@dataclass(frozen=True)
class PlainTree(Tree):
    """Only the root: the tree of decoding without a draft."""

    word = "plain"
    example = "plain"
    needs_draft = False

    def drafter(self, draft: Any = None) -> PlainDrafter:
        return PLAIN_DRAFTER


PLAIN = PlainTree()
