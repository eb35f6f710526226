"""The base type of all ways to draft: a `Tree` has a name, which `parse_tree` reads from the user's text.

Each rule for trees has its own file in this package, with a frozen dataclass derived from `Tree` for the rule's
parameters, and the `Drafter` that grows its trees.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, ClassVar, get_type_hints

from clover.drafting.base import Drafter, FixedPolicy, Policy
from clover.errors import UserError, one_line


class Tree:
    """A way to draft: plain decoding, a rule for growing trees, or a choice among several.

    Subclasses are frozen dataclasses, so that trees are values. A new subclass is known to `parse_tree` at once.

    Attributes:
        word: the first word of its name; the parameters follow, separated by colons.
        example: a name that error messages show.
        exact: whether the text equals that of plain decoding token by token, even if tokens are sampled. False if
            only the distribution is equal, because the text depends on the draft's random numbers; int8 copies of the
            draft's weights would then change the text.
        needs_draft: whether a draft model proposes the tokens.
        fixed_size: whether each step verifies the same number of nodes.
        tunable: whether a tuning may name it: a single rule whose speed depends only on the draft.
    """

    word: ClassVar[str] = ""
    example: ClassVar[str] = ""
    exact: ClassVar[bool] = True
    needs_draft: ClassVar[bool] = True
    fixed_size: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    rules: ClassVar[list[type[Tree]]] = []

    def __init_subclass__(cls) -> None:
        Tree.rules.append(cls)

    @classmethod
    def parse(cls, text: str) -> Tree | None:
        """Return the tree of this rule with the name `text`; None if the name belongs to another rule.

        Raises UserError or ValueError if the name begins with the rule's word but its parameters are invalid.
        """
        word, *parts = text.split(":")
        if word != cls.word:
            return None
        parameters, kinds = fields(cls), get_type_hints(cls)  # type: ignore[arg-type]  # subclasses are dataclasses
        if len(parts) > len(parameters):
            raise UserError(f"{word} has fewer parameters")
        missing = [
            one.name
            for one in parameters[len(parts) :]
            if one.default is MISSING and one.default_factory is MISSING
        ]
        if missing:
            raise UserError(f"{word} needs {' and '.join(missing)}")
        values = [kinds[one.name](part) for one, part in zip(parameters, parts, strict=False)]
        return cls(*values)

    @property
    def name(self) -> str:
        """Return the text from which `parse_tree` makes an equal tree; trailing default parameters are left out."""
        values = [(getattr(self, one.name), one.default) for one in fields(self)]  # type: ignore[arg-type]
        while values and values[-1][1] is not MISSING and values[-1][0] == values[-1][1]:
            values.pop()
        return ":".join([self.word, *(str(value) for value, _ in values)])

    @property
    def is_chain(self) -> bool:
        """Return True if the tree is a chain of a fixed number of draft tokens."""
        return False

    def drafter(self, draft: Any) -> Drafter:
        """Return the drafter that grows the trees with a draft (`DraftModel`; None for trees that need none).

        Raises UserError if the draft cannot grow them.
        """
        raise NotImplementedError

    def policy(self, draft: Any, tuning: Any = None, compiled: bool = False) -> Policy:
        """Return the policy that chooses the drafter of each step; by default it is always this tree's own drafter.

        Args:
            draft: as for `drafter`.
            tuning: the measurements of this draft on this machine, a `Tuning`; None without.
            compiled: whether steps are compiled, separately for each shape of a tree.
        """
        return FixedPolicy(self.drafter(draft))


def parse_tree(text: str | Tree) -> Tree:
    """Return the tree with a name; a tree is returned unchanged.

    Args:
        text: "plain"; "auto", which chooses while it runs; "lookup[:K]", which copies from the text; "own", the tree of
            the draft's configuration; "clover2" (25 nodes), "medusa" (63 nodes), "chain:K", "paths:0,1,00" or a file
            NAME.json with a list of rank paths (`StaticTree`); "chain:K:LEAST" (`ConfidentChain`), "budget:B[:MASS]"
            (`BudgetTree`), "eagle2:N[:BEAM[:DEPTH]]" (`RerankTree`) or "drawn:TREE" with a static tree (`DrawnTree`).

    Raises:
        UserError: if the name is unknown, or the file has no tree.

    >>> parse_tree("budget:4"), parse_tree("eagle2:30:8:5").name
    (BudgetTree(budget=4, mass=0.8), 'eagle2:30:8:5')
    """
    if isinstance(text, Tree):
        return text
    if text == "draft":
        raise UserError('the tree "draft" was renamed; give own, the tree of the draft')
    if not isinstance(text, str):
        raise UserError(f"a tree is {text!r}; give a name, such as clover2, or an object of clover.drafting")
    wanted = f"give {', '.join(rule.example for rule in Tree.rules if rule.example)}, or a file NAME.json with a list "
    wanted += "of rank paths such as [[0], [1], [0, 0]]"
    try:
        for rule in Tree.rules:
            if (tree := rule.parse(text)) is not None:
                return tree
    except UserError as error:
        raise UserError(f"tree {_shortened(text)}: {one_line(error)}; {wanted}") from error
    except ValueError as error:  # of int() and float()
        raise UserError(f"tree {_shortened(text)} does not have the numbers it needs; {wanted}") from error
    raise UserError(f"there is no tree {_shortened(text)}; {wanted}")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
