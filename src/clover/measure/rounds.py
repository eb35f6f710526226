"""Decode one prompt with every method in turn, so that it can be watched; and find where greedy texts differ.

Methods on our engines alternate every tenth of a second, so that whatever the machine does slows all alike;
transformers' `generate` cannot be paused, and comes before or after them. Drawing the screen is not timed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from clover.engine import Request
from clover.measure.session import PLAIN
from clover.measure.speed import Method
from clover.measure.timing import Run, TimedDecoding, speed, take_turns
from clover.target import TargetWeights

TURN_SECONDS = 0.1
_TIE = 1e-3  # logits so near may change places when more tokens run at once


@dataclass
class Round:
    """One prompt, counted from 0, at one temperature; `decode_round` fills it, and `show` may read it before the end.

    Plain decoding is the first of the `methods`. By their names, `decodings` has those on our engines, and `runs` those
    that are finished.
    """

    number: int
    prompt: str
    request: Request
    methods: Sequence[Method]
    decodings: dict[str, TimedDecoding] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """Return the temperature that all methods decode at."""
        return self.request.params.temperature


Show = Callable[[Round], None]


def decode_round(current: Round, show: Show, turn_seconds: float = TURN_SECONDS) -> Round:
    """Decode the prompt with every method; `show` is called after each turn of about `turn_seconds`."""
    engines = {one.name: one.engine for one in current.methods if one.engine is not None}
    current.decodings = {name: TimedDecoding(engine, [current.request]) for name, engine in engines.items()}
    ours_first = current.number % 2 == 0
    if not ours_first:
        _run_others(current, show)
    waiting = take_turns(list(current.decodings), current.number)
    while waiting:
        for name in tuple(waiting):
            run = current.decodings[name].advance(turn_seconds)
            if run is not None:
                waiting.remove(name)
                current.runs[name] = run
            show(current)
    if ours_first:
        _run_others(current, show)
    return current


def _run_others(current: Round, show: Show) -> None:
    """Decode with the methods that are not on our engines."""
    for method in current.methods:
        if method.engine is None:
            current.runs[method.name] = method.decode([current.request])
            show(current)


def totals(rounds: Sequence[Round]) -> dict[str, tuple[float, float]]:
    """Return the tokens per second of each method in finished rounds, and its speed-up against the first method."""
    if not rounds:
        return {}
    methods = rounds[0].methods
    speeds = {one.name: speed([done.runs[one.name] for done in rounds]) for one in methods}
    return {name: (value, value / speeds[methods[0].name]) for name, value in speeds.items()}


@dataclass(frozen=True)
class TextDifference:
    """A greedy text that is not plain decoding's.

    Attributes:
        prompt, position: its number, and the first new token that differs, both from 1.
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
        """Return the difference as a sentence."""
        gap = "one text ends" if self.gap is None else f"the two tokens' logits are {self.gap:.2g} apart"
        why = "a defect, rounding does not explain it" if self.defect else "rounding can do that"
        return f"{self.method}, prompt {self.prompt}, at new token {self.position}: {gap}; {why}"


def find_differences(target: TargetWeights, rounds: Sequence[Round]) -> Iterator[TextDifference]:
    """Yield every greedy text that is not plain decoding's, with the gap between the target's two logits there."""
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
            yield TextDifference(name, one.number + 1, at + 1, gap, exact and (gap is None or gap > _TIE))


@torch.inference_mode()
def _gap(target: TargetWeights, text: Sequence[int], first: int, second: int) -> float:
    read = torch.tensor([list(text)], device=target.device)
    logits = target.logits(target.train_forward(read).hidden[0, -1]).double()
    return abs(float(logits[first] - logits[second]))
