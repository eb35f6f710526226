"""Static trees: the same shape at every step.

Shapes: B batch, N nodes (root included), P frontier nodes, V the draft's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from clover.drafting.base import Drafter, DraftInput
from clover.drafting.guide import Guide
from clover.drafting.tree import Tree
from clover.drafts import DraftModel, DraftSession
from clover.drafts.vocabulary import target_tokens
from clover.errors import UserError
from clover.tree import CLOVER2_TREE, MEDUSA_TREE, TokenTree, TreeShape
from clover.tree.shape import MOST
from clover.validation import read_model

_MOST_BYTES = 2**20  # the largest file with a tree
_PUBLISHED = {"clover2": CLOVER2_TREE, "medusa": MEDUSA_TREE}
RankPaths = tuple[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], ...]


@dataclass(frozen=True)
class StaticTree(Tree):
    """A tree of one shape, filled anew at every step.

    Its names are "clover2", "medusa", "chain:K" for K draft tokens one after another, "paths:" and the rank paths of
    its nodes, or a file NAME.json with a list of such paths. In "paths:0,1,00" each digit is a rank. Dots separate the
    ranks of a path with a rank above 9, as in "0.12", and follow a single such rank, as in "12.".

    >>> StaticTree.parse("paths:0,1,00,0.12").shape.ranks
    (0, 0, 1, 0, 12)
    >>> StaticTree(CLOVER2_TREE).name, StaticTree(TreeShape.from_paths([[0], [12], [0, 0]])).name
    ('clover2', 'paths:0,12.,00')
    """

    shape: TreeShape

    example = "clover2, medusa, chain:5"

    @classmethod
    def parse(cls, text: str) -> StaticTree | None:
        word, colon, rest = text.partition(":")
        if text in _PUBLISHED:
            return cls(_PUBLISHED[text])
        if colon and word == "chain" and ":" not in rest:
            return cls(TreeShape.chain(int(rest)))
        if colon and word == "paths":
            return cls(TreeShape.from_paths(map(_ranks, rest.split(","))))
        if text.endswith(".json") and word not in [rule.word for rule in Tree.rules]:
            return cls(TreeShape.from_paths(read_model(Path(text), RankPaths, _MOST_BYTES)))
        return None

    @property
    def name(self) -> str:
        for name, shape in _PUBLISHED.items():
            if self.shape == shape:
                return name
        if self.is_chain:
            return f"chain:{self.shape.budget}"
        return "paths:" + ",".join(map(_path_text, self.shape.paths[1:]))

    @property
    def is_chain(self) -> bool:
        return self.shape == TreeShape.chain(self.shape.budget)

    def drafter(self, draft: DraftModel) -> StaticDrafter:
        return StaticDrafter(draft, self.shape)


@dataclass(frozen=True)
class OwnTree(Tree):
    """The static tree of the draft's configuration, cut to the nodes that the draft can fill (`own_shape`)."""

    word = "own"
    example = "own"
    tunable = False

    def drafter(self, draft: DraftModel) -> Drafter:
        return StaticDrafter(draft, own_shape(draft))


@dataclass(frozen=True)
class Level:
    """The nodes of one depth of a static tree, with index tensors on the device that fill them.

    Attributes:
        choices: how many of the best tokens of a parent are needed.
        expanded: Long [parents], the parents of these nodes, in the order of the draft's output.
        slots: Long [nodes], each node's parent, as a row of the draft's output.
        ranks: Long [nodes], each node's rank among the best tokens of that row.
        places: Long [parents], the parents' indices in the level above.
        above: Long [parents], the parents' slots in the level above.

    For the paths 0, 1, 00, 10 (nodes 1 to 4; the root is 0): at depth 1 expanded = [0], slots = [0, 0], ranks = [0, 1];
    at depth 2 expanded = [1, 2], slots = [0, 1] (node 3 uses row 0 of the output, node 4 row 1), ranks = [0, 0],
    places = [0, 1], above = [0, 0].
    """

    choices: int
    expanded: Tensor
    slots: Tensor
    ranks: Tensor
    places: Tensor
    above: Tensor

    @property
    def single(self) -> bool:
        """Return True if the level is the best child of a single parent, which needs less work."""
        return self.choices == len(self.slots) == len(self.expanded) == 1

    def pick(self, scores: Tensor) -> Tensor:
        """Return the level's tokens, Long [B, nodes], from scores [B, parents, V] of the parents' children."""
        if self.single:
            return scores.argmax(-1)
        return scores.topk(self.choices).indices[:, self.slots, self.ranks]

    def advance(self, session: DraftSession, nodes: Tensor) -> Tensor:
        """Run the draft over the parents, taken from the level above Long [B, nodes]; return logits [B, parents, V]."""
        tokens = nodes if self.single and nodes.shape[1] == 1 else nodes[:, self.places]
        return session.advance(self.above.expand(len(nodes), -1), tokens)


class StaticDrafter(Drafter):
    """Fills a fixed tree shape: node i is the `ranks[i]`-th best child of its parent (Clover-2, section 3).

    The best tokens are the most probable ones in greedy sequences, and those with the highest Gumbel scores
    (`Sampler.gumbel_scores`) in sampled ones. The draft runs once per depth, over the nodes with children.
    """

    def __init__(self, draft: DraftModel, shape: TreeShape):
        if shape.max_depth > draft.max_depth:
            raise UserError(
                f"the tree is {shape.max_depth} deep but the draft goes down {draft.max_depth} depths at most; "
                "give a shallower tree"
            )
        known, widest = known_tokens(draft), max(shape.ranks) + 1
        if widest > known:
            raise UserError(
                f"the tree looks at the {widest} best tokens of a node but the draft proposes from {known}; "
                "give a narrower tree or a draft with a larger vocabulary"
            )
        self.shape, self.max_depth, self.max_nodes = shape, shape.max_depth, len(shape.parents)
        self.max_expanded = self.max_nodes
        self.levels = levels_of(shape, draft.target.device)
        self.d2t = draft.session_tokens

    def grow(self, batch: DraftInput) -> TokenTree:
        return TokenTree.from_shape(self.shape, self.fill(batch))

    def fill(self, batch: DraftInput) -> Tensor:
        """Return the tokens of the tree, Long [B, N]."""
        return self.walk(
            batch,
            lambda depth, level, output: level.pick(batch.sampler.gumbel_scores(output, depth, self.d2t)),
        )

    def walk(
        self, batch: DraftInput, pick: Callable[[int, Level, Tensor], Tensor], force: bool = True
    ) -> Tensor:
        """Return the tokens of the tree, Long [B, N], level by level, under the grammars of the texts.

        `pick` returns a level's tokens, Long [B, nodes] in the draft's numbering, from the depth of their parents, the
        level and the draft's logits [B, parents, V]. With `force`, the only token that a grammar allows is drafted even
        if the draft does not know it.
        """
        (session, output), tokens = batch.commit_draft(), [batch.root]
        guide = Guide.of(batch, self.d2t)
        for depth, level in enumerate(self.levels):
            if depth:
                output = level.advance(session, tokens[-1])
            if guide is None:
                tokens.append(target_tokens(self.d2t, pick(depth, level, output)))
                continue
            guide.expand(level.places.tolist())
            found = target_tokens(self.d2t, pick(depth, level, guide.restrict(output)))
            slots = level.slots.tolist()
            tokens.append(guide.force(found, slots, level.ranks.tolist()) if force else found)
            guide.follow([slots] * len(found), tokens[-1])
        return torch.cat(tokens, dim=1)


def own_shape(draft: DraftModel) -> TreeShape:
    """Return the tree of the draft's configuration, cut to the draft's depth and to the number of tokens it knows."""
    return draft.config.tree_shape.cut(draft.max_depth).narrow(known_tokens(draft))


def known_tokens(draft: DraftModel) -> int:
    """Return V, the number of tokens that a draft's sessions can propose, copied ones included."""
    tokens = draft.session_tokens
    return draft.target.vocab_size if tokens is None else len(tokens)


def levels_of(shape: TreeShape, device: torch.device) -> list[Level]:
    """Return the levels at depths 1, 2, … of a tree, with index tensors on a device."""
    levels, slots = list[Level](), [0]
    for depth in range(1, shape.max_depth + 1):
        nodes = [node for node, its_depth in enumerate(shape.depths) if its_depth == depth]
        ranks = [shape.ranks[node] for node in nodes]
        expanded = sorted({shape.parents[node] for node in nodes})
        places = [parent - shape.depths.index(depth - 1) for parent in expanded]
        above, slots = slots, [expanded.index(shape.parents[node]) for node in nodes]
        above = [above[place] for place in places]
        indices = (torch.tensor(some, device=device) for some in (expanded, slots, ranks, places, above))
        levels.append(Level(max(ranks) + 1, *indices))
    return levels


def _path_text(path: tuple[int, ...]) -> str:
    if max(path) <= 9:
        return "".join(map(str, path))
    return ".".join(map(str, path)) + ("." if len(path) == 1 else "")


def _ranks(path: str) -> list[int]:
    ranks = path.removesuffix(".").split(".") if "." in path else list(path)
    if not ranks or not all(rank.isascii() and rank.isdigit() and len(rank) < 5 for rank in ranks):
        raise UserError(f"{path[:20]!r} is not a path of ranks such as 00 or 0.12")
    return [int(rank) for rank in ranks]
