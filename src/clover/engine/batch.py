"""The sequences that run together. Shapes: B batch, V vocabulary of the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clover.drafts import DraftSession
from clover.drafts.ngrams import RepeatingText
from clover.engine.limits import EngineLimits
from clover.engine.sequences import RunningSequence
from clover.engine.timing import PhaseClock
from clover.engine.uncommitted import Uncommitted, joined
from clover.sampling import Sampler
from clover.target import TargetSession

_BLOCK = 64  # A block of `Batch.uncommitted` has at least so many positions; it joins that many steps.


@dataclass
class Batch:
    """Sequences, in the same order everywhere; what a drafter reads of them (`clover.drafting.DraftInput`).

    Attributes:
        target: what the target remembers of them.
        draft: what the draft has committed of them; None without a draft.
        sampler: how the sequences' tokens are chosen; of no use to a batch without sequences.
        root: Long [B, 1], the newest token of each text. It has been emitted, but neither model has run it; it becomes
            the root of the next tree.
        uncommitted: what the target has run and the draft has not committed, oldest first; empty without a draft.
        committed_backlog: a report for the policy: how many older positions the draft had to commit first in this step,
            which makes the step slow. The scheduler sets it to 0 before each step.
    """

    sequences: list[RunningSequence]
    target: TargetSession
    draft: DraftSession | None
    sampler: Sampler
    root: Tensor
    uncommitted: list[Uncommitted]
    limits: EngineLimits
    clock: PhaseClock
    committed_backlog: int = 0

    def texts(self) -> list[RepeatingText | None]:
        """Return the text of each sequence; None for those that are decoded plainly."""
        return [None if one.request.plain else one.repeating for one in self.sequences]

    def drafted_texts(self) -> list[RepeatingText]:
        """Return the texts of the sequences that are not decoded plainly."""
        return [text for text in self.texts() if text is not None]

    def commit_draft(self) -> tuple[DraftSession, Tensor]:
        """Let the draft commit all that the target has run; return its session, and logits [B, 1, V] for depth 1."""
        assert self.draft is not None, "only a draft can commit"
        logits = [self.draft.commit(*part) for part in self.take_uncommitted()]
        return self.draft, logits[-1].unsqueeze(1)

    def take_uncommitted(self, last: int | None = None) -> list[Uncommitted]:
        """Remove what is uncommitted and return it in chunks, the last one of at most `last` positions."""
        self.committed_backlog = self.backlog
        parts, self.uncommitted = self.uncommitted, []
        chunk = self.limits.chunk(len(self.sequences), max(self.target.lengths))
        return list(joined(parts).split(chunk, min(last or chunk, chunk)))

    def add_uncommitted(self, part: Uncommitted) -> None:
        """Add what the target ran in a step; many short parts become a block, so that a long plain text has few."""
        parts = self.uncommitted
        parts.append(part)
        if len(parts) > _BLOCK and parts[-_BLOCK - 1].hidden.shape[1] < _BLOCK:
            parts[-_BLOCK - 1 : -1] = [joined(parts[-_BLOCK - 1 : -1])]

    @property
    def backlog(self) -> int:
        """Return the number of uncommitted positions before those of the last step, of the sequence that has most."""
        return max(map(sum, zip(*(part.counts for part in self.uncommitted[:-1]), strict=True)), default=0)

    def drop(self, dropped: Sequence[int]) -> None:
        """Remove the sequences at these places; the last one moves into the place of each."""
        if not dropped:
            return
        kept = list(range(len(self.sequences)))
        for row in sorted(dropped, reverse=True):
            if self.sequences[row].finish_reason == "error":
                self.target.clear(row)
                if self.draft is not None:
                    self.draft.clear(row)
            kept[row] = kept[-1]
            kept.pop()
            self.target.drop(row)
            if self.draft is not None:
                self.draft.drop(row)
        self.sequences = [self.sequences[row] for row in kept]
        if kept:
            self.sampler.select(kept)
        self.uncommitted = [part.rows(kept) for part in _compact(self.uncommitted)]
        self.root = self.root[torch.tensor(kept, dtype=torch.long, device=self.root.device)]

    def insert(self, other: Batch) -> None:
        """Add the sequences of another batch behind those that are here, which are not touched."""
        if not other.sequences:
            return
        if not self.sequences:
            self.sampler = other.sampler
        else:
            self.sampler.insert(other.sampler)
        self.target.insert(other.target)
        if self.draft is not None and other.draft is not None:
            self.draft.insert(other.draft)
            (*earlier, last), (*others, others_last) = _compact(self.uncommitted), _compact(other.uncommitted)
            assert not others, "a joining prompt has more than its last position uncommitted"
            nothing = others_last._replace(counts=[0] * len(others_last.counts))
            self.uncommitted = [*(part.above(nothing) for part in earlier), last.above(others_last)]
        self.sequences += other.sequences
        self.root = torch.cat((self.root, other.root))


def _compact(parts: list[Uncommitted]) -> list[Uncommitted]:
    """Join all parts but the last, the last step's."""
    return parts if len(parts) <= 2 else [joined(parts[:-1]), parts[-1]]
