"""What is measured: plain decoding, drafts with their trees, and what transformers itself has to offer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from clover.api import load
from clover.drafting.prompt_lookup import LOOKUP as PROMPT_LOOKUP
from clover.engine import Engine
from clover.integrations.generate import TransformersGenerate
from clover.measure.interleaved import Decode, decode
from clover.measure.report.words import system_name
from clover.target import TargetModel

PLAIN, AUTO, OWN_TREE = "plain", "auto", "own tree"
TRANSFORMERS, LOOKUP, ASSISTED = "transformers", "prompt lookup", "assisted"
_LABELS = {LOOKUP: "transformers' prompt lookup", ASSISTED: "transformers' assisted"}
_LOOKUP_TOKENS = 10  # the number in transformers' own documentation


@dataclass(frozen=True)
class Method:
    """A way to decode: what results and people call it, our engine (None for transformers), its tree if given."""

    name: str
    label: str
    decode: Decode
    engine: Engine | None = None
    tree: str | None = None

    @property
    def drafts(self) -> bool:
        """Whether a draft of ours takes part."""
        return self.engine is not None and self.engine.draft is not None

    @property
    def nodes(self) -> int | None:
        """Tokens that every step verifies per text, root included; None where steps differ, or are not ours."""
        tree = self.tree or ""
        chosen = self.name == AUTO or tree == PROMPT_LOOKUP
        varies = chosen or (tree.startswith("chain:") and tree.count(":") > 1)
        return None if self.engine is None or varies else self.engine.policy.max_nodes

    def refusal(self, batch_size: int) -> str | None:
        """Why it cannot run batches of this size; None if it can."""
        if isinstance(self.decode, TransformersGenerate) and self.decode.one_row_only and batch_size > 1:
            return "not able: transformers runs it on one text at a time"
        return None

    def comparable(self, temperature: float) -> bool:
        """Whether its texts have to be those of plain decoding, token by token."""
        return temperature == 0 or (self.engine is not None and not (self.tree or "").startswith("drawn:"))


def of_engine(name: str, engine: Engine, tree: str | None = None) -> Method:
    """A method of ours."""
    label = (
        "prompt lookup (ours)" if tree == PROMPT_LOOKUP else system_name(name)
    )  # a draft system has that name, too
    return Method(name, label, partial(decode, engine), engine, tree)


def method_names(trees: Sequence[str], reference: bool, assisted: bool) -> list[str]:
    """All that the benchmark measures, plain decoding first.

    >>> method_names(["chain:3"], reference=True, assisted=False)
    ['plain', 'auto', 'own tree', 'chain:3', 'transformers', 'prompt lookup']
    """
    theirs = [TRANSFORMERS, LOOKUP] if reference else []
    return [PLAIN, AUTO, OWN_TREE, *trees, *theirs, *([ASSISTED] if assisted else [])]


def make_method(
    name: str, target: TargetModel, draft: str, assistant: Any = None, compile: bool | str = False
) -> Method:
    """Set up one method of the benchmark, by one of this module's names or a tree's specification.

    `assistant` is a model of transformers, whose methods run without `compile`. UserError if the draft cannot be
    loaded, or the tree is unknown or deeper than the draft goes.
    """
    if name in (TRANSFORMERS, LOOKUP, ASSISTED):
        lookup = _LOOKUP_TOKENS if name == LOOKUP else None
        reference = TransformersGenerate(target, lookup, assistant if name == ASSISTED else None)
        return Method(name, _LABELS.get(name, system_name(name)), reference)
    if name == PLAIN:
        return of_engine(name, load(target, plain=True, compile=compile).engine)
    tree = None if name in (AUTO, OWN_TREE) else name
    asked = None if tree == PROMPT_LOOKUP else draft
    how = "auto" if name == AUTO else "draft"
    return of_engine(name, load(target, asked, method=how, tree=tree, compile=compile).engine, tree)
