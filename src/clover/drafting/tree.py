"""What drafts, as one type: a `Tree` has a name that is read once, where a user's text comes in.

A rule for trees is one file of this package: a frozen dataclass derived from `Tree`, with the rule's parameters, and
the `Drafter` that grows its trees.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, ClassVar, get_type_hints

from clover.drafting.base import Drafter, FixedPolicy, Policy
from clover.errors import UserError, one_line


class Tree:
    """What drafts at each step: plain decoding, a rule for growing trees, or a choice among several.

    Subclasses are frozen dataclasses, so that trees are values. Defining one makes its names known to `parse_tree`.

    Attributes:
        word: the first word of its name; the parameters follow, with colons between them.
        example: a name that error messages show.
        exact: whether the text is that of plain decoding token by token, also where tokens are sampled. False where
            only its distribution is, because the tree depends on the draft's random numbers; int8 copies of the
            draft's weights would then change the text.
        needs_draft: whether a draft model proposes the tokens.
        fixed_size: whether each step verifies the same number of nodes.
        tunable: whether a tuning may name it: a single rule whose speed depends on the draft alone.
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
        """Return the tree of this rule that has a name; None if it is a name of another rule.

        Raises UserError or ValueError if the name begins with the rule's word and the parameters cannot be used.
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
        """Return the text from which `parse_tree` makes an equal tree, without parameters at their defaults."""
        values = [(getattr(self, one.name), one.default) for one in fields(self)]  # type: ignore[arg-type]
        while values and values[-1][1] is not MISSING and values[-1][0] == values[-1][1]:
            values.pop()
        return ":".join([self.word, *(str(value) for value, _ in values)])

    @property
    def is_chain(self) -> bool:
        """Return whether it is a chain of a fixed number of draft tokens."""
        return False

    def drafter(self, draft: Any) -> Drafter:
        """Return what grows its trees with a draft (`DraftModel`; None for trees that need none).

        Raises UserError if the draft cannot grow them.
        """
        raise NotImplementedError

    def policy(self, draft: Any, tuning: Any = None, compiled: bool = False) -> Policy:
        """Return what decides before each step which drafter runs: always its own, unless a subclass chooses.

        Args:
            draft: as for `drafter`.
            tuning: what was measured of this draft on this machine, a `Tuning`, if anything.
            compiled: whether steps are compiled, each shape of a tree by itself.
        """
        return FixedPolicy(self.drafter(draft))


def parse_tree(text: str | Tree) -> Tree:
    """Return the tree that has a name; a tree is returned as it is.

    Args:
        text: "plain"; "auto", which chooses while it runs; "lookup[:K]", which copies from the text; "own", the tree of
            the draft's configuration; "clover2" (25 nodes), "medusa" (63 nodes), "chain:K", "paths:0,1,00" or a file
            NAME.json with a list of rank paths (`StaticTree`); "chain:K:LEAST" (`ConfidentChain`), "budget:B[:MASS]"
            (`BudgetTree`), "eagle2:N[:BEAM[:DEPTH]]" (`RerankTree`) or "drawn:TREE" with a static tree (`DrawnTree`).

    Raises:
        UserError: if it is no such name, or there is no tree in the file.

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
