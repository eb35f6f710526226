"""Which trees the choice at run time is between."""

from collections.abc import Sequence
from math import inf, log2
from statistics import fmean

from clover.drafting.auto import AutoPolicy, Candidate
from clover.drafting.copying import LENGTHS, copier_name
from clover.drafting.making import make_drafter
from clover.drafting.tuning import PLAIN, Choice, Tuning, verify_seconds
from clover.drafts import DraftModel
from clover.tree import BudgetTree, ConfidentChain, RerankTree, Tree, TreeShape, parse_tree

_CHAIN = "chain:8:0.15"  # of an untuned draft
_COMPILED_LENGTHS = (15,)
_LEAST_CONSIDERED = 3  # tuned trees per batch size, besides plain steps
_SHALLOW = 0.5  # of the depth of the best tree: what harder text may want
_TUNED_WEIGHT = 200.0  # rows times steps that a tuned acceptance counts for


def make_policy(
    draft: DraftModel, tuning: Tuning | None = None, compiled: bool = False, copies: bool = True
) -> AutoPolicy:
    """Make what chooses between trees, and none, while it runs.

    Args:
        tuning: what was measured of the draft on this machine: of each batch size the best tree of fixed shape, the
            best chain that ends early, all chains of fixed length, the best tree of half the depth, and the
            shallowest, which harder text may want. Without it the draft's own tree, a chain that ends early, and four
            nodes of Clover-1's rule are measured.
        compiled: leave chains that end early out, for each of their lengths would have to be compiled, and chains
            that are not among the others; let copies have one length.
        copies: whether steps may copy where a text repeats itself.

    Raises:
        UserError: a tuned tree is deeper than the draft goes.
    """
    lengths = () if not copies else _COMPILED_LENGTHS if compiled else LENGTHS
    if tuning is None:
        return AutoPolicy(_default_candidates(draft, compiled), copies=lengths)
    best = {size: _worth_considering(tuning.choices_for(size), compiled) for size in tuning.batch_sizes}
    found: dict[str, list[Choice]] = {}
    for choice in (choice for choices in best.values() for choice in choices if choice.tree != PLAIN):
        found.setdefault(choice.tree, []).append(choice)
    candidates = [_tuned_candidate(draft, choices) for choices in found.values()]
    if not candidates:
        return AutoPolicy(_default_candidates(draft, compiled), copies=lengths)
    costs = {size: {c.tree: c.step_seconds for c in choices} for size, choices in best.items()}
    for size, known in costs.items():
        known.update(_copy_costs(tuning, size, known.get(PLAIN), lengths))
    return AutoPolicy(candidates, costs, _TUNED_WEIGHT, lengths)


def _copy_costs(tuning: Tuning, size: int, plain: float | None, lengths: Sequence[int]) -> dict[str, float]:
    """Seconds of steps of copies: a plain step's, with the target's pass over more tokens."""
    if plain is None or not tuning.verify:
        return {}
    near = min(tuning.verify, key=lambda cost: (abs(log2(cost.batch_size / size)), cost.context))
    single = verify_seconds(tuning.verify, size, 1, near.context)
    passes = {length: verify_seconds(tuning.verify, size, 1 + length, near.context) for length in lengths}
    return {copier_name(length): plain * max(seconds / single, 1.0) for length, seconds in passes.items()}


def _tuned_candidate(draft: DraftModel, choices: Sequence[Choice]) -> Candidate:
    """What was measured of one tree, at several batch sizes, taken together."""
    drafter = make_drafter(draft, parse_tree(choices[0].tree))
    return Candidate(choices[0].tree, drafter, fmean(choice.tau for choice in choices) - 1)


def _worth_considering(choices: Sequence[Choice], compiled: bool) -> list[Choice]:
    """The best tree of fixed shape, that ends early, of half the depth, the shallowest, chains; others; plain steps.

    Trials of a tuning hardly tell the first two apart, and other text may want the other one, or another depth.
    """
    trees = {c.tree: parse_tree(c.tree) for c in choices if c.tree != PLAIN}
    ending = {name for name, tree in trees.items() if isinstance(tree, ConfidentChain)}
    good = [c for c in choices if c.tree in trees and not (compiled and c.tree in ending)]
    fixed, early = ([c for c in good if (c.tree in ending) is ends] for ends in (False, True))
    wanted = [*good[:1], *fixed[:1], *early[:1]]
    wanted += [c for c in good if _depth(trees[c.tree]) <= _SHALLOW * _depth(trees[good[0].tree])][:1]
    wanted += sorted(good, key=lambda choice: _depth(trees[choice.tree]))[:1]
    if not compiled:  # there each would be captured
        wanted += [c for c in good if _is_chain(trees[c.tree])]
    considered = list(dict.fromkeys(wanted))
    others = [choice for choice in good if choice not in considered]
    considered += others[: max(_LEAST_CONSIDERED - len(considered), 0)]
    return [*considered, *(c for c in choices if c.tree == PLAIN)]


def _is_chain(tree: Tree) -> bool:
    return isinstance(tree, TreeShape) and tree == TreeShape.chain(tree.max_depth)


def _depth(tree: Tree) -> float:
    """Of trees whose depth their name says; of others as good as none."""
    match tree:
        case TreeShape():
            return tree.max_depth
        case ConfidentChain() | RerankTree():
            return tree.depth
    return inf


def _default_candidates(draft: DraftModel, compiled: bool) -> list[Candidate]:
    trees: dict[str, Tree | None] = {"the draft's own": None, "budget:4": BudgetTree(4)}
    if compiled or draft.target.device.type != "cpu":  # elsewhere the host would wait at each depth
        trees["chain:2"] = TreeShape.chain(2).cut(draft.max_depth)
    else:
        trees[_CHAIN] = parse_tree(_CHAIN)
    drafters = {name: make_drafter(draft, tree) for name, tree in trees.items()}
    return [Candidate(name, d, 0.5 * log2(d.max_nodes)) for name, d in drafters.items()]
