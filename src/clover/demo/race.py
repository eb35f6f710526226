"""One prompt decoded by every method in turn, so that it can be watched and whatever the machine does slows all alike.

Methods of ours take turns of a tenth of a second; transformers' `generate` cannot be stopped, and comes before or
after them, in turn. A run's time is that spent inside the engine, prefill and drafting included; drawing the screen
falls between the turns and is in nobody's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
        runs: those that are finished, by method.
    """

    number: int
    prompt: str
    request: Request
    methods: Sequence[Method]
    decodings: dict[str, Decoding] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def temperature(self) -> float:
        """The temperature all methods decode at."""
        return self.request.params.temperature


Show = Callable[[Round], None]


def race(current: Round, show: Show) -> Round:
    """Decode the prompt with every method; `show` is called between the turns."""
    for one in current.methods:
        if one.engine is not None:
            current.decodings[one.name] = Decoding(one.engine, [current.request])
    parts = [_run_ours, _run_theirs]
    for part in parts if current.number % 2 == 0 else reversed(parts):
        part(current, show)
    return current


def totals(rounds: Sequence[Round]) -> dict[str, tuple[float, float]]:
    """Tokens per second of each method and the speed-up against the first one, of finished rounds."""
    methods = rounds[0].methods if rounds else ()
    speeds = {one.name: speed([done.runs[one.name] for done in rounds]) for one in methods}
    return {name: (value, value / speeds[methods[0].name]) for name, value in speeds.items()}


def _run_ours(current: Round, show: Show) -> None:
    waiting = take_turns(list(current.decodings), current.number)
    while waiting:
        for name in tuple(waiting):
            run = current.decodings[name].advance(TURN_SECONDS)
            if run is not None:
                waiting.remove(name)
                current.runs[name] = run
            show(current)


def _run_theirs(current: Round, show: Show) -> None:
    for method in current.methods:
        if method.engine is None:
            current.runs[method.name] = method.decode([current.request])
            show(current)
