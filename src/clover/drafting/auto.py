"""The tree "auto", which chooses the drafter of each step; this file collects the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from clover.drafting.bandit import AutoPolicy, Candidate
from clover.drafting.plain import PLAIN
from clover.drafting.prompt_lookup import LookupTree
from clover.drafting.static import StaticTree, own_shape
from clover.drafting.tree import Tree, parse_tree
from clover.drafting.tuning import Choice, Tuning, seconds_at
from clover.drafts import DraftModel
from clover.tree import TreeShape

_DEPTHS, _COMPILED_DEPTHS = (1, 2, 4, 6, 8, 12), (2,)  # An untuned draft may grow these chains.
_LENGTHS, _COMPILED_LENGTHS = (7, 15, 31), (15,)  # Prompt lookup may propose these numbers of tokens.


@dataclass(frozen=True)
class AutoTree(Tree):
    """The fastest of plain decoding, chains, own tree, tuned trees and prompt lookup, learnt while it runs."""

    word = "auto"
    example = "auto"
    fixed_size = False
    tunable = False

    def policy(self, draft: DraftModel, tuning: Tuning | None = None, compiled: bool = False) -> AutoPolicy:
        """Return the bandit. With a tuning it chooses among chains and each batch size's best tree, at known costs.

        Compiled steps have fewer candidates, because each shape is compiled separately.
        """
        lookups = [LookupTree(length) for length in (_COMPILED_LENGTHS if compiled else _LENGTHS)]
        trees, costs, taus = dict[str, Tree](), dict[int, dict[str, float]](), dict[str, list[float]]()
        for choice in _recommended(tuning, compiled) if tuning else ():
            tree = parse_tree(choice.tree)
            trees[tree.name] = tree
            costs.setdefault(choice.batch_size, {})[tree.name] = choice.step_seconds
            taus.setdefault(tree.name, []).append(choice.tau)
        drafted = any(tree.needs_draft for tree in trees.values())
        if not any(tree.is_chain for tree in trees.values()):  # The policy needs a draft, tuned or not.
            depths = [min(depth, draft.max_depth) for depth in (_COMPILED_DEPTHS if compiled else _DEPTHS)]
            shapes = [*map(TreeShape.chain, depths), *([] if drafted else [own_shape(draft)])]
            trees |= {tree.name: tree for tree in map(StaticTree, shapes)}
        for size, known in costs.items():
            assert tuning is not None
            known |= _lookup_seconds(tuning, size, known.get(PLAIN.name), lookups)
        every = {tree.name: tree for tree in (PLAIN, *trees.values(), *lookups)}
        candidates = {name: Candidate(tree, tree.drafter(draft)) for name, tree in every.items()}
        return AutoPolicy(candidates, costs, {name: fmean(some) for name, some in taus.items()})


def _recommended(tuning: Tuning, compiled: bool) -> Iterator[Choice]:
    """Yield for each batch size plain decoding, the chains (only the best if steps are compiled) and the best tree."""
    for size in tuning.batch_sizes:
        choices = [(choice, parse_tree(choice.tree)) for choice in tuning.choices_for(size)]
        yield from (choice for choice, tree in choices if tree == PLAIN)
        yield from [choice for choice, tree in choices if tree.is_chain][: 1 if compiled else None]
        trees = [one for one, tree in choices if tree.needs_draft and tree.fixed_size and not tree.is_chain]
        yield from trees[:1]


def _lookup_seconds(
    tuning: Tuning, size: int, plain: float | None, lookups: Sequence[LookupTree]
) -> dict[str, float]:
    """Return the seconds of a step of each prompt lookup: a plain step, with the target's pass over more tokens."""
    if plain is None or not tuning.verify:
        return {}
    one = seconds_at(tuning.verify, size, 1)
    return {
        tree.name: plain * max(seconds_at(tuning.verify, size, 1 + tree.length) / one, 1.0)
        for tree in lookups
    }
