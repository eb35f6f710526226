"""Where a greedy text of a draft leaves that of plain decoding, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from clover.bench.methods import PLAIN
from clover.demo.race import Round
from clover.target import TargetModel

_TIE = 1e-3  # logits so near may change places when more tokens run at once


@dataclass(frozen=True)
class Difference:
    """A greedy text that is not plain decoding's.

    Args:
        method: its name.
        prompt: its number, from 1.
        position: of the first new token that differs, from 1.
        gap: how far apart the target's logits of the two tokens are when it reads the text up to there at once;
            None where one text goes on after the other has ended.
        defect: whether the dtype is too exact for rounding to explain it.
    """

    method: str
    prompt: int
    position: int
    gap: float | None
    defect: bool

    @property
    def words(self) -> str:
        """The difference in a sentence."""
        gap = (
            "one text ends there" if self.gap is None else f"the two tokens' logits are {self.gap:.2g} apart"
        )
        why = "a defect, rounding does not explain it" if self.defect else "rounding can do that"
        return f"{self.method}, prompt {self.prompt}, at new token {self.position}: {gap}; {why}"


def find_differences(target: TargetModel, rounds: Sequence[Round]) -> Iterator[Difference]:
    """All of them, each with how near a tie the target is there."""
    exact = target.dtype in (torch.float32, torch.float64)
    for one in rounds:
        plain = one.runs[PLAIN].texts[0]
        for name in one.decodings:
            other = one.runs[name].texts[0]
            if one.temperature or other == plain:
                continue
            both = min(len(plain), len(other))
            at = next((at for at in range(both) if plain[at] != other[at]), both)
            text = (*one.request.prompt, *plain[:at])
            gap = _gap(target, text, plain[at], other[at]) if at < both else None
            yield Difference(name, one.number + 1, at + 1, gap, exact and (gap is None or gap > _TIE))


@torch.inference_mode()
def _gap(target: TargetModel, text: Sequence[int], first: int, second: int) -> float:
    read = torch.tensor([list(text)], device=target.device)
    logits = target.logits(target.train_forward(read).hidden[0, -1]).double()
    return abs(float(logits[first] - logits[second]))
