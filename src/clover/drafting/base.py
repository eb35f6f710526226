"""What the engine asks of a drafter: one token tree per row and step.

Shapes: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from clover.drafts import DraftSession
from clover.sampling import Sampler
from clover.tree import TokenTree


class Drafter(Protocol):
    """Grows a tree by asking a draft's session for distributions.

    Attributes:
        max_depth: no tree is deeper.
        max_nodes: no tree has more nodes, root included.
    """

    max_depth: int
    max_nodes: int

    def grow(self, session: DraftSession, logits: Tensor, root: Tensor, sampler: Sampler) -> TokenTree:
        """Draft one tree per row.

        Args:
            session: the draft's state, just committed up to the root.
            logits: [B, V] the draft's logits for the root's children, as `session.commit` returned them.
            root: Long [B] the last committed token of each row.
            sampler: how the rows' tokens are chosen, and by which random numbers.
        """
        ...
