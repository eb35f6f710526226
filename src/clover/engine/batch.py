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

_BLOCK = 64  # `Batch.uncommitted` joins the parts of this many steps into one block.


@dataclass
class Batch:
    """The running sequences, in the same order in every attribute; drafters read it as a `clover.drafting.DraftInput`.

    Attributes:
        target: the target's session.
        draft: the draft's session; None without a draft.
        sampler: chooses the sequences' tokens; unused while there are no sequences.
        root: Long [B, 1], the newest token of each text. It has been emitted, but neither model has run it; it becomes
            the root of the next tree.
        uncommitted: positions that the draft has not committed yet, oldest first; empty without a draft.
        committed_backlog: older positions that the draft committed in this step, for the policy: they make the step
            slow. The scheduler sets it to 0 before each step.
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
        """Return the text of each sequence; None for a sequence that is decoded plainly."""
        return [None if one.request.plain else one.repeating for one in self.sequences]

    def drafted_texts(self) -> list[RepeatingText]:
        """Return the texts of the sequences that are not decoded plainly."""
        return [text for text in self.texts() if text is not None]

    def commit_draft(self) -> tuple[DraftSession, Tensor]:
        """Commit all positions in the draft; return its session, and its logits [B, 1, V] for depth 1."""
        assert self.draft is not None, "only a draft can commit"
        logits = [self.draft.commit(*part) for part in self.take_uncommitted()]
        return self.draft, logits[-1].unsqueeze(1)

    def take_uncommitted(self, last: int | None = None) -> list[Uncommitted]:
        """Remove the uncommitted positions and return them in chunks; the last chunk has at most `last` positions."""
        self.committed_backlog = self.backlog
        parts, self.uncommitted = self.uncommitted, []
        chunk = self.limits.chunk(len(self.sequences), max(self.target.lengths))
        return list(joined(parts).split(chunk, min(last or chunk, chunk)))

    def add_uncommitted(self, part: Uncommitted) -> None:
        """Add the positions of one step. Many short parts are joined, so that a long plain text has few parts."""
        parts = self.uncommitted
        parts.append(part)
        if len(parts) > _BLOCK and parts[-_BLOCK - 1].hidden.shape[1] < _BLOCK:
            parts[-_BLOCK - 1 : -1] = [joined(parts[-_BLOCK - 1 : -1])]

    @property
    def backlog(self) -> int:
        """Return the most uncommitted positions of any sequence, without those of the last step."""
        return max(map(sum, zip(*(part.counts for part in self.uncommitted[:-1]), strict=True)), default=0)

    def drop(self, dropped: Sequence[int]) -> None:
        """Remove the sequences of these rows; the last sequence moves into each free row."""
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
        """Append the sequences of another batch; the present ones keep their rows."""
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
            assert not others, "a prompt that joins has uncommitted positions before its last one"
            nothing = others_last._replace(counts=[0] * len(others_last.counts))
            self.uncommitted = [*(part.above(nothing) for part in earlier), last.above(others_last)]
        self.sequences += other.sequences
        self.root = torch.cat((self.root, other.root))


def _compact(parts: list[Uncommitted]) -> list[Uncommitted]:
    """Join all parts except the last one, which belongs to the last step."""
    return parts if len(parts) <= 2 else [joined(parts[:-1]), parts[-1]]
