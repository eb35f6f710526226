"""Trees as users name them: static ones, and the rules by which the others are grown anew at every step."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from clover.errors import UserError, one_line
from clover.tree.shape import MOST, TreeShape
from clover.validation import checked, read_model

_MOST_BYTES = 2**20  # of a file with a tree
_Count = Annotated[int, Field(ge=1, le=MOST)]
# Of trees whose candidates, as many as the square of it, are sorted at every step; as many as `clover tune` times.
_Few = Annotated[int, Field(ge=1, le=512)]
RankPaths = tuple[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], ...]


@checked
class BudgetTree:
    """Clover-1's dynamic tree (arXiv 2405.00263): few nodes, those with the highest joint probability.

    Attributes:
        budget: draft tokens per step at most, root excluded; at most 512.
        mass: of each node's children those are candidates whose probabilities, the highest first, sum to at most
            this; the first always is. In (0, 1].
    """

    budget: _Few = 4
    mass: Annotated[float, Field(gt=0, le=1)] = 0.8


@checked
class RerankTree:
    """EAGLE-2's dynamic tree (arXiv 2406.16858, section 4): expand a beam, then keep the best of all candidates.

    `budget` draft tokens are kept per step, root excluded. `beam` nodes are expanded per depth, each gets as many
    children; the beam goes `depth` down, but no deeper than the draft. Budget and beam are at most 512.
    """

    budget: _Few = 60
    beam: _Few = 10
    depth: _Count = 6


@checked
class ConfidentChain:
    """A chain that is ended at each step where the draft is no longer confident that it is accepted so far.

    `least` is the joint probability of its tokens, as the mean over sequences, below which no more are drafted.
    """

    depth: _Count
    least: Annotated[float, Field(gt=0, lt=1)]


@checked
class DrawnTree:
    """A static shape whose children are drawn from the draft without replacement (EAGLE, arXiv 2401.15077).

    A child's rank says which draw it is. Draws are verified in their order, so none may be left out.
    """

    shape: TreeShape

    def __post_init__(self) -> None:
        if self.shape.budget < 1:
            raise UserError("a drawn tree has no nodes; give one with a child at least")
        children = set(zip(self.shape.parents, self.shape.ranks, strict=True))
        if any(rank and (parent, rank - 1) not in children for parent, rank in children):
            raise UserError("in a drawn tree the children of a node have the ranks 0, 1, 2 …, no gaps")


Tree = TreeShape | BudgetTree | RerankTree | ConfidentChain | DrawnTree


def _shape(paths: str) -> TreeShape:
    return TreeShape.from_paths([int(rank) for rank in path] for path in paths.split())


# The static tree of Clover-2 (arXiv 2408.00264): 4, 8, 8, 3 and 2 nodes at depths 1 to 5.
CLOVER2_TREE = _shape(
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)

# The static tree of Medusa (arXiv 2401.10774) as published for 7B models: 10, 28, 23 and 2 nodes at depths 1 to 4.
MEDUSA_TREE = _shape(
    "0 1 2 3 4 5 6 7 8 9 "
    "00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 20 21 22 30 31 40 50 60 70 80 90 "
    "000 001 002 003 004 005 006 007 008 009 010 011 012 020 021 030 040 050 060 070 100 101 200 0000 0001"
)

_NAMED = {"clover2": CLOVER2_TREE, "medusa": MEDUSA_TREE}
CHOICES = ("auto", "plain", "lookup")  # names beside those of trees; who accepts them must not hand them on
_WANTED = (
    "give clover2, medusa, chain:5, chain:10:0.1, budget:4, eagle2:60, drawn:clover2, or a JSON "
    "file with a list of rank paths such as [[0], [1], [0, 0]]"
)


def parse_tree(text: str) -> Tree:
    """Read a tree from a command line; UserError if it is none of these, or the file does not hold a tree.

    Args:
        text: "clover2" (25 nodes), "medusa" (63 nodes), "chain:K", "chain:K:LEAST" (`ConfidentChain`),
            "budget:B[:MASS]" (`BudgetTree`), "eagle2:N[:BEAM[:DEPTH]]" (`RerankTree`), "drawn:TREE" with a static
            tree (`DrawnTree`), "paths:0,1,00" (see `static_spec`), or the path of a JSON list of rank paths.

    >>> parse_tree("chain:5").budget, parse_tree("clover2") is CLOVER2_TREE
    (5, True)
    >>> parse_tree("budget:4"), parse_tree("eagle2:30:8:5")
    (BudgetTree(budget=4, mass=0.8), RerankTree(budget=30, beam=8, depth=5))
    >>> parse_tree("chain:10:0.1")
    ConfidentChain(depth=10, least=0.1)
    >>> parse_tree("drawn:chain:3") == DrawnTree(TreeShape.chain(3))
    True
    >>> parse_tree("paths:0,1,00,0.12").ranks
    (0, 0, 1, 0, 12)
    """
    if text in _NAMED:
        return _NAMED[text]
    if text in CHOICES:
        raise UserError(f"{text} chooses what drafts, but here a tree is needed; {_WANTED}")
    try:
        return _parsed(text)
    except UserError as error:
        raise UserError(f"tree {_shortened(text)}: {one_line(error)}; {_WANTED}") from error
    except ValueError as error:  # of int() and float()
        raise UserError(f"tree {_shortened(text)} does not have the numbers it needs; {_WANTED}") from error


def _parsed(text: str) -> Tree:
    kind, colon, given = text.partition(":")
    parts = given.split(":")
    match kind if colon else "", len(parts):
        case "chain", 1:
            return TreeShape.chain(int(given))
        case "chain", 2:
            return ConfidentChain(int(parts[0]), float(parts[1]))
        case "budget", 1 | 2:
            return BudgetTree(int(parts[0]), *map(float, parts[1:]))
        case "eagle2", 1 | 2 | 3:
            return RerankTree(*map(int, parts))
        case "paths", 1:
            return TreeShape.from_paths(map(_ranks, given.split(",")))
        case "drawn", _:
            shape = _NAMED.get(given) or (None if parts[0] == "drawn" else _parsed(given))
            if not isinstance(shape, TreeShape):
                raise UserError("only a static tree can be drawn, such as drawn:clover2 or drawn:chain:5")
            return DrawnTree(shape)
        case "chain" | "budget" | "eagle2", _:
            raise UserError(f"{kind} takes fewer parts")
    return TreeShape.from_paths(read_model(Path(text), RankPaths, _MOST_BYTES))


def static_spec(shape: TreeShape) -> str:
    """Write a static tree as `parse_tree` reads it: one digit per rank; dots between ranks where one is above 9.

    >>> static_spec(TreeShape.chain(3)), static_spec(TreeShape.from_paths([[0], [12], [0, 0], [0, 12]]))
    ('chain:3', 'paths:0,12.,00,0.12')
    """
    if shape == TreeShape.chain(shape.budget):
        return f"chain:{shape.budget}"
    return "paths:" + ",".join(map(_path_text, shape.paths[1:]))


def _path_text(path: tuple[int, ...]) -> str:
    if max(path) <= 9:
        return "".join(map(str, path))
    return ".".join(map(str, path)) + ("." if len(path) == 1 else "")


def _ranks(path: str) -> list[int]:
    ranks = path.removesuffix(".").split(".") if "." in path else list(path)
    if not ranks or not all(rank.isascii() and rank.isdigit() and len(rank) < 5 for rank in ranks):
        raise UserError(f"{path[:20]!r} is no path of ranks such as 00 or 0.12")
    return [int(rank) for rank in ranks]


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
