"""One prompt decoded by every method in turn, so that it can be watched and whatever the machine does slows all alike.

Methods of ours take turns of a tenth of a second; transformers' `generate` cannot be stopped, and comes before or
after them, in turn. A run's time is that spent inside the engine, prefill and drafting included; drawing the screen
falls between the turns and is in nobody's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from clover.bench.methods import Method
from clover.engine import Request
from clover.interleaved import Decoding, Run, speed, take_turns

TURN_SECONDS = 0.1


@dataclass
class Round:
    """One prompt at one temperature. It can be looked at while it runs.

    Args:
        number: of the prompt, from 0.
        prompt: its text.
        request: what every method is asked for.
        methods: plain decoding first.
        decodings: those of our methods, by name.
        theirs: runs of the other methods that are finished.
    """

    number: int
    prompt: str
    request: Request
    methods: Sequence[Method]
    decodings: dict[str, Decoding] = field(default_factory=dict)
    theirs: dict[str, Run] = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The temperature all methods decode at."""
        return self.request.params.temperature

    @property
    def runs(self) -> dict[str, Run]:
        """The runs that are finished, by method."""
        ours = {name: one.run for name, one in self.decodings.items() if one.run is not None}
        return ours | self.theirs


Show = Callable[[Round], None]


def race(current: Round, show: Show = lambda current: None) -> Round:
    """Decode the prompt with every method; `show` is called between the turns."""
    ours = {one.name: one.engine for one in current.methods if one.engine is not None}
    current.decodings = {
        name: Decoding(engine, [current.request]) for name, engine in ours.items() if engine is not None
    }
    parts = [_run_ours, _run_theirs]
    for part in parts if current.number % 2 == 0 else reversed(parts):
        part(current, show)
    return current


def totals(rounds: Sequence[Round]) -> dict[str, tuple[float, float, float]]:
    """Per method the tokens per second, the speed-up against the first method, and τ, of finished rounds."""
    found: dict[str, tuple[float, float, float]] = {}
    for method in rounds[0].methods if rounds else ():
        runs = [one.runs[method.name] for one in rounds]
        fast = speed(runs)
        base = next(iter(found.values()))[0] if found else fast
        found[method.name] = fast, fast / base, reduce(add, (run.acceptance for run in runs)).tau
    return found


def _run_ours(current: Round, show: Show) -> None:
    waiting = take_turns(list(current.decodings.values()), current.number)
    while waiting:
        for decoding in tuple(waiting):
            if not decoding.advance(TURN_SECONDS):
                waiting.remove(decoding)
            show(current)


def _run_theirs(current: Round, show: Show) -> None:
    for method in current.methods:
        if method.engine is None:
            current.theirs[method.name] = method.decode([current.request])
            show(current)
