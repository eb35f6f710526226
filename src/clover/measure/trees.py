"""Find the static tree of each size that accepts the most tokens, and its τ, from rank paths."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product, takewhile

from clover.drafting import StaticTree, parse_tree
from clover.measure.ranks import RankPath
from clover.measure.session import PLAIN
from clover.tree import TreeShape

WIDTH = 10  # the number of ranks that nodes may have
_REFINEMENTS = 2  # how often a tree is chosen again, from the steps that it leads to
_CHAINS = (1, 2, 3, 4, 6, 8, 10, 12)  # depths
_SIZES = (4, 8, 16, 32, 64)  # draft tokens of the trees to time
_MAX_TOKENS = 512  # the most nodes of all sequences in a step
_WIDTH = 6  # children of a node in a full tree


@dataclass(frozen=True)
class TreeCandidate:
    """A static tree and its τ on the texts: tokens per step, the bonus token included."""

    shape: TreeShape
    tau: float

    @property
    def spec(self) -> str:
        """Return the tree's name, in the form that `parse_tree` reads."""
        return StaticTree(self.shape).name


def count_starts(paths: Iterable[RankPath]) -> Counter[RankPath]:
    """Count the rank paths that start with each path of ranks below WIDTH; a tree accepts that node so often."""
    counts: Counter[RankPath] = Counter()
    for path in paths:
        known = len(list(takewhile(lambda rank: rank < WIDTH, path)))
        counts.update(path[:depth] for depth in range(1, known + 1))
    return counts


def most_frequent(counts: Counter[RankPath], max_depth: int | None = None) -> list[RankPath]:
    """Return the counted paths, the most frequent first; any number of them from the start is a tree.

    It accepts the most tokens of all trees of its size, because they are the sum of the nodes' counts, and no child has
    a higher count than its parent. (Medusa, 2401.10774, section 3.3, multiplies the heads' accuracies instead.)

    >>> most_frequent(count_starts([(0, 0), (0, 1), (1,), (0, 0)]))
    [(0,), (0, 0), (1,), (0, 1)]
    """
    paths = [path for path in counts if max_depth is None or len(path) <= max_depth]
    return sorted(paths, key=lambda path: (-counts[path], len(path), path))


def accepted_steps(texts: Iterable[Sequence[RankPath]], nodes: frozenset[RankPath]) -> list[RankPath]:
    """Return the rank paths at the starts of steps, if every step grows the tree of these nodes."""
    starts = []
    for paths in texts:
        at = 0
        while at < len(paths):
            starts.append(paths[at])
            at += accepted(paths[at], nodes) + 1
    return starts


def accepted(path: RankPath, nodes: frozenset[RankPath]) -> int:
    """Return how many tokens of a rank path a tree of these nodes accepts."""
    depth = 0
    while depth < len(path) and path[: depth + 1] in nodes:
        depth += 1
    return depth


def exact_tau(texts: Sequence[Sequence[RankPath]], nodes: frozenset[RankPath]) -> float:
    """Return τ of a static tree on the texts, in the same steps as the engine's; 1 without nodes."""
    steps = len(accepted_steps(texts, nodes))
    return sum(map(len, texts)) / steps if steps else 1.0


def worth_timing(
    texts: Sequence[Sequence[RankPath]],
    own_tree: TreeShape,
    max_depth: int,
    batch_size: int,
    width: int = _WIDTH,
) -> list[TreeCandidate]:
    """Return trees that may be the fastest: chains, the draft's own tree, and the best trees of several sizes.

    Each size has its best tree, and the best of half that depth. No node has more children than `width`, the number of
    tokens that the draft proposes from.
    """
    chains = [TreeShape.chain(depth) for depth in _CHAINS if depth <= max_depth]
    sizes = [size for size in _SIZES if size * batch_size <= _MAX_TOKENS]
    shapes = [*chains, own_tree]
    for size in sizes:
        deep = best_tree(texts, size, max_depth) or _full_tree(size, max_depth, min(width, _WIDTH))
        shapes += [deep, best_tree(texts, size, -(-deep.max_depth // 2))]
    known = [shape for shape in dict.fromkeys(shapes) if shape is not None]
    return [TreeCandidate(shape, exact_tau(texts, frozenset(shape.paths[1:]))) for shape in known]


def best_tree(texts: Sequence[Sequence[RankPath]], size: int, max_depth: int) -> TreeShape | None:
    """Return the tree of `size` draft tokens that accepts the most; None if the texts have too few rank paths.

    The first choice is by counts over all new tokens. Further choices, as long as they raise τ, are by counts over the
    steps of the tree before.
    """
    nodes, tau = frozenset[RankPath](), 0.0
    found = most_frequent(count_starts(path for paths in texts for path in paths), max_depth)[:size]
    for _ in range(1 + _REFINEMENTS):
        if len(found) < size or (its_tau := exact_tau(texts, frozenset(found))) <= tau:
            break
        nodes, tau = frozenset(found), its_tau
        found = most_frequent(count_starts(accepted_steps(texts, nodes)), max_depth)[:size]
    return TreeShape.from_paths(nodes) if nodes else None


def _full_tree(size: int, max_depth: int, width: int) -> TreeShape:
    """Return a tree of `size` tokens, or fewer if `max_depth` is too small, for a draft that is never right."""
    paths = chain.from_iterable(product(range(width), repeat=depth) for depth in range(1, max_depth + 1))
    return TreeShape.from_paths(islice(paths, size))


def tree_label(tree: str) -> str:
    """Return a readable name of a tree; for a list of paths without a name, the nodes per depth.

    >>> tree_label("plain"), tree_label("chain:3"), tree_label("paths:0,1,00,01,000")
    ('plain decoding', 'chain:3', 'static 2+2+1')
    """
    found = parse_tree(tree)
    if not isinstance(found, StaticTree) or not found.name.startswith("paths:"):
        return "plain decoding" if tree == PLAIN else found.name
    return "static " + "+".join(str(n) for depth, n in Counter(found.shape.depths).items() if depth)
