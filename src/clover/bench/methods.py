"""What is measured: plain decoding, the draft with its trees, and what transformers itself has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import AutoModelForCausalLM

from clover.drafting import make_policy
from clover.drafting.tuning import Tuning
from clover.drafts import DraftModel
from clover.engine import Engine
from clover.errors import UserError, one_line
from clover.integrations.reference import Reference
from clover.interleaved import Decode, decode
from clover.target import TargetModel
from clover.tree import parse_tree

PLAIN, AUTO, OWN_TREE = "plain", "auto", "own tree"
TRANSFORMERS, LOOKUP, ASSISTED = "transformers", "prompt lookup", "assisted"
WITHOUT_DRAFT = (PLAIN, TRANSFORMERS, LOOKUP, ASSISTED)
_LOOKUP_TOKENS = 10  # the number in transformers' own documentation


@dataclass(frozen=True)
class Contender:
    """A way to decode.

    Args:
        name: what results call it.
        decode: decodes one batch.
        engine: ours; None for transformers.
    """

    name: str
    decode: Decode
    engine: Engine | None = None

    @property
    def drafts(self) -> bool:
        """Whether a draft of ours takes part."""
        return self.engine is not None and self.engine.draft is not None

    def refusal(self, batch_size: int) -> str | None:
        """Why it cannot run batches of this size; None if it can."""
        reference = self.decode
        if isinstance(reference, Reference) and reference.one_row_only and batch_size > 1:
            return "not able: transformers runs it on one text at a time"
        return None

    def comparable(self, temperature: float) -> bool:
        """Whether its texts have to be those of our plain decoding."""
        return temperature == 0 or (self.engine is not None and not self.name.startswith("drawn:"))


def method_names(trees: Sequence[str], reference: bool, assisted: bool) -> list[str]:
    """All that is to be measured, plain decoding first.

    >>> method_names(["chain:3"], reference=True, assisted=False)
    ['plain', 'auto', 'own tree', 'chain:3', 'transformers', 'prompt lookup']
    """
    theirs = [TRANSFORMERS, LOOKUP] if reference else []
    return [PLAIN, AUTO, OWN_TREE, *trees, *theirs, *([ASSISTED] if assisted else [])]


def make_contender(
    name: str,
    target: TargetModel,
    draft: DraftModel | None = None,
    assistant: Any | None = None,
    tuning: Tuning | None = None,
    compile: bool | str = False,
) -> Contender:
    """Set up one method.

    Args:
        name: one of this module's names, or a tree's specification.
        draft: for all methods that draft.
        assistant: a model of transformers, for assisted generation.
        tuning: what "auto" starts from, if the draft was tuned.
        compile: as for `Engine`; transformers' methods run as they are.

    Raises:
        UserError: the tree is unknown, or deeper than the draft goes.
    """
    references = {
        TRANSFORMERS: Reference(target),
        LOOKUP: Reference(target, lookup_tokens=_LOOKUP_TOKENS),
        ASSISTED: Reference(target, assistant=assistant),
    }
    if name in references:
        return Contender(name, references[name])
    engine = _engine(name, target, draft, tuning, compile)
    return Contender(name, partial(decode, engine), engine)


def _engine(
    name: str,
    target: TargetModel,
    draft: DraftModel | None,
    tuning: Tuning | None,
    compile: bool | str,
) -> Engine:
    if name == PLAIN:
        return Engine(target, compile=compile)
    assert draft is not None
    if name == AUTO:
        return Engine(target, draft, policy=make_policy(draft, tuning, bool(compile)), compile=compile)
    tree = None if name == OWN_TREE else parse_tree(name)
    return Engine(target, draft, tree, compile=compile)


def load_assistant(name: str, target: TargetModel, trust_remote_code: bool) -> Any:
    """Load a small model for assisted generation.

    Raises:
        UserError: it cannot be loaded, or has another vocabulary than the target.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=target.dtype, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"the assistant {name} cannot be loaded: {one_line(error)}") from error
    if model.config.vocab_size != target.config.vocab_size:
        raise UserError(
            f"the assistant {name} has a vocabulary of {model.config.vocab_size}, the target one of "
            f"{target.config.vocab_size}; transformers needs the same"
        )
    return model.to(target.device).eval()
