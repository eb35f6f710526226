"""Static trees, the same shape at every step, and chains that end early.

Shapes: B batch, N nodes (root included), P frontier nodes, V the draft's vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafting.base import DraftInput
from clover.drafting.top_k import likeliest
from clover.drafts import DraftModel, DraftSession
from clover.drafts.vocabulary import target_tokens
from clover.errors import UserError
from clover.tree import ConfidentChain, TokenTree, TreeShape


@dataclass(frozen=True)
class Level:
    """The nodes of one depth of a static tree, and what fills them, as index tensors on the device.

    Attributes:
        choices: how many tokens of a parent's distribution are looked at.
        expanded: Long [parents], the nodes whose children these are, in the order of the draft's output.
        slots, ranks: Long [nodes], row of the draft's output that a node is a child in, and which of its tokens it is.
        places, above: Long [parents], where these are among the nodes of the level above, and their `slots` there.
    """

    choices: int
    expanded: Tensor
    slots: Tensor
    ranks: Tensor
    places: Tensor
    above: Tensor

    @property
    def single(self) -> bool:
        """Whether the level is one node, the best child of the only parent: part of a chain, with less to look up."""
        return self.choices == len(self.slots) == len(self.expanded) == 1

    def pick(self, scores: Tensor) -> Tensor:
        """The level's nodes, Long [B, nodes], by scores [B, parents, V] of their parents' children."""
        if self.single:
            return scores.argmax(-1)
        return scores.topk(self.choices).indices[:, self.slots, self.ranks]

    def advance(self, session: DraftSession, nodes: Tensor) -> Tensor:
        """Run the draft over this level's parents, of the level above Long [B, nodes]; its logits [B, parents, V]."""
        parents = nodes if self.single and nodes.shape[1] == 1 else nodes[:, self.places]
        return session.advance(self.above.expand(len(nodes), -1), parents)


class StaticDrafter:
    """Fills a fixed tree shape: node i is the `ranks[i]`-th best child of its parent (Clover-2, section 3).

    The best are the most probable ones in greedy sequences; in sampled ones those with the highest Gumbel scores
    (`Sampler.gumbel_scores`). One call of the draft per depth; only nodes that have children are expanded.
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
        self.max_expanded = self.max_nodes  # nodes that the draft runs at most
        self.levels = levels_of(shape, draft.target.device)
        self.d2t = draft.session_tokens

    def grow(self, given: DraftInput) -> TokenTree:
        return TokenTree.from_shape(self.shape, self.fill(given))

    def fill(self, given: DraftInput) -> Tensor:
        """The tokens of the tree, Long [B, N]."""
        session, logits = given.commit_draft()
        tokens, output = [given.root.unsqueeze(1)], logits.unsqueeze(1)
        for depth, level in enumerate(self.levels):
            if depth:
                output = level.advance(session, tokens[-1])
            picked = level.pick(given.sampler.gumbel_scores(output, depth, self.d2t))
            tokens.append(target_tokens(self.d2t, picked))
        return torch.cat(tokens, dim=1)


class ConfidentDrafter:
    """Drafts one token after another until their joint probability, as the mean over sequences, is below the least.

    The threshold is that of transformers' `assistant_confidence_threshold` and of SpecDec++ (2405.19715), here on the
    probability of the whole path: in sampled sequences after Gumbel coupling (`Sampler.gumbel_scores`). All sequences
    get as many tokens. The host waits for the device once per depth.
    """

    def __init__(self, draft: DraftModel, tree: ConfidentChain):
        self.least, self.d2t = tree.least, draft.session_tokens
        self.max_depth = min(draft.max_depth, tree.depth)
        self.max_nodes = 1 + self.max_depth
        self._shapes = [TreeShape.chain(depth) for depth in range(1, self.max_depth + 1)]

    def grow(self, given: DraftInput) -> TokenTree:
        session, logits = given.commit_draft()
        tokens, output = [given.root.unsqueeze(1)], logits.unsqueeze(1)
        slots, joint = torch.zeros_like(tokens[0]), torch.ones_like(given.root, dtype=torch.float64)
        for depth in range(1, self.max_depth + 1):
            found, indices = likeliest(given.sampler.gumbel_scores(output, depth - 1, self.d2t)[:, 0], 1)
            tokens.append(target_tokens(self.d2t, indices))
            joint = joint * found[:, 0].exp()
            if depth == self.max_depth or float(joint.mean()) < self.least:
                break
            output = session.advance(slots, tokens[-1])
        return TokenTree.from_shape(self._shapes[len(tokens) - 2], torch.cat(tokens, dim=1))


def own_tree(draft: DraftModel) -> TreeShape:
    """The draft's tree where the user names none: as deep as it goes, and no wider than the tokens that it knows."""
    return draft.config.tree_shape.cut(draft.max_depth).narrow(known_tokens(draft))


def known_tokens(draft: DraftModel) -> int:
    """How many tokens a draft's sessions propose from, V; those that it copies count."""
    tokens = draft.session_tokens
    return draft.target.vocab_size if tokens is None else len(tokens)


def levels_of(shape: TreeShape, device: torch.device) -> list[Level]:
    """The depths 1, 2, … of a tree, on a device."""

    def index(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    levels, slots = list[Level](), [0]
    for depth in range(1, shape.max_depth + 1):
        nodes = [node for node, its_depth in enumerate(shape.depths) if its_depth == depth]
        ranks = [shape.ranks[node] for node in nodes]
        expanded = sorted({shape.parents[node] for node in nodes})
        places = [parent - shape.depths.index(depth - 1) for parent in expanded]
        above, slots = slots, [expanded.index(shape.parents[node]) for node in nodes]
        above = [above[place] for place in places]
        levels.append(Level(max(ranks) + 1, *map(index, (expanded, slots, ranks, places, above))))
    return levels
