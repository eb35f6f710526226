"""Plain decoding: nothing is drafted, and each step gives one token."""

from dataclasses import dataclass
from typing import Any

from clover.drafting.base import PLAIN_DRAFTER, Drafter
from clover.drafting.tree import Tree


@dataclass(frozen=True)
class PlainTree(Tree):
    """The root alone, what decoding without a draft runs."""

    word = "plain"
    example = "plain"
    needs_draft = False

    def drafter(self, draft: Any = None) -> Drafter:
        return PLAIN_DRAFTER


PLAIN = PlainTree()
