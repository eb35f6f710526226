"""Measure plain decoding, a draft and transformers' own `generate` on the same prompts, fairly.

Plain decoding and the draft run on the same engine and take turns of a tenth of a second on each prompt, so that
whatever else the machine does slows both alike; which of them is first changes from prompt to prompt, and so does
whether `generate` comes before or after the two. A run's time is that spent inside the engine, prefill and drafting
included; drawing the screen falls between the turns and is in nobody's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clover.api import Clover
from clover.drafting import DrawnDrafter
from clover.engine import Engine, PhaseClock, Request
from clover.errors import UserError
from clover.integrations.reference import Reference
from clover.interleaved import wait_for
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel

PLAIN, TRANSFORMERS = "plain", "transformers"
TURN_SECONDS = 0.1
_WARM_UP_TOKENS, _WARM_UP_SECONDS = (4, 24), 10.0


@dataclass(frozen=True)
class Run:
    """What one method did with one prompt.

    Args:
        tokens: new token ids.
        seconds: for all of it, prefill included.
        acceptance: steps and accepted tokens.
        clock: where the time of decoding went; None for transformers.
    """

    tokens: tuple[int, ...]
    seconds: float
    acceptance: Acceptance
    clock: PhaseClock | None = None


class Decoding:
    """One request on one engine; `seconds` grows only inside `advance`."""

    def __init__(self, engine: Engine, request: Request, clock: PhaseClock | None = None):
        self.clock = clock or PhaseClock()
        self.seconds = 0.0
        self.tokens = 0
        self.pieces: list[str] = []  # the text of each step
        self.run: Run | None = None
        self._events = engine.run([request], self.clock)

    def advance(self, seconds: float = float("inf")) -> bool:
        """Decode for about so many seconds, to the end of a step; returns whether there is more to do."""
        started = now = time.perf_counter()
        while self.run is None and now - started < seconds:
            event = next(self._events)
            now = time.perf_counter()
            self.tokens += len(event.tokens)
            self.pieces.append(event.text)
            if event.generation is not None:
                total = self.seconds + now - started
                self.run = Run(event.generation.tokens, total, event.generation.acceptance, self.clock)
        self.seconds += now - started
        return self.run is None

    @property
    def steps(self) -> int:
        """Decoding steps so far."""
        return len(self.pieces)


@dataclass
class Round:
    """One prompt at one temperature, decoded by every method. It can be looked at while it runs.

    Args:
        number: of the prompt, from 0.
        prompt: its text.
        request: what every method is asked for.
        decodings: the engine's methods, plain decoding first.
        generate: the run of transformers' own `generate`; greedy rounds have one.
        generating: whether that runs just now.
        verify_clock: of the draft's run: on a GPU of another run that waits for the device after each phase.
    """

    number: int
    prompt: str
    request: Request
    decodings: dict[str, Decoding]
    generate: Run | None = None
    generating: bool = False
    verify_clock: PhaseClock | None = None

    @property
    def temperature(self) -> float:
        """The temperature all methods decode at."""
        return self.request.params.temperature

    @property
    def runs(self) -> dict[str, Run]:
        """The runs that are finished, by method."""
        done = {name: decoding.run for name, decoding in self.decodings.items() if decoding.run is not None}
        return done if self.generate is None else {TRANSFORMERS: self.generate, **done}


Show = Callable[[Round], None]


class Bench:
    """The engines, the prompts and the order in which they are measured.

    Args:
        model: a target with a draft; plain decoding uses the same target.
        prompts: texts to continue.
        temperature: of the sampled part; 0 leaves it out.

    Raises:
        UserError: a prompt is longer than the target's context, or empty for its tokenizer; or sampled texts, which
            are compared with those of plain decoding, would come from a drawn tree.
    """

    def __init__(self, model: Clover, prompts: Sequence[str], temperature: float):
        assert model.engine.draft is not None
        if temperature and isinstance(model.engine.drafter, DrawnDrafter):
            raise UserError(
                "sampled text from a drawn tree has the distribution of plain decoding, not its tokens, and the demo "
                "compares tokens; give another tree or --temperature 0"
            )
        self.target = model.target
        self.draft_name = str(model.engine.draft.config.model_type)
        self.engines = {PLAIN: Engine(model.target), self.draft_name: model.engine}
        self.temperatures = (0.0,) if temperature == 0 else (0.0, temperature)
        self.prompts = list(prompts)
        self.encoded = [tuple(model.encode(prompt)) for prompt in prompts]
        for number, tokens in enumerate(self.encoded, start=1):
            if not 0 < len(tokens) < self.target.context_length:
                limit = self.target.context_length - 1
                raise UserError(f"prompt {number} has {len(tokens)} tokens; the target takes 1 to {limit}")

    def seconds_per_token(self) -> float:
        """Warm everything up, then time one token of all methods at all temperatures together."""
        seconds = 0.0
        for tokens in _WARM_UP_TOKENS:
            if seconds * tokens > _WARM_UP_SECONDS:
                break
            started = time.perf_counter()
            rounds = [self.round(0, temperature, tokens) for temperature in self.temperatures]
            seconds = (time.perf_counter() - started) / max(len(r.runs[PLAIN].tokens) for r in rounds)
        return seconds

    def round(self, number: int, temperature: float, max_new_tokens: int, show: Show | None = None) -> Round:
        """Decode one prompt with every method; `show` is called between the turns."""
        prompt = self.encoded[number]
        room = self.target.context_length - len(prompt)
        params = SamplingParams(temperature=temperature, seed=number)
        request = Request(prompt, min(max_new_tokens, room), params)
        decodings = {name: Decoding(engine, request) for name, engine in self.engines.items()}
        current = Round(number, self.prompts[number], request, decodings)
        parts = [self._take_turns] if temperature else [self._take_turns, self._generate]
        for part in reversed(parts) if number % 2 == 1 else parts:
            part(current, show)
        current.verify_clock = self._verify_clock(current)
        return current

    def _generate(self, current: Round, show: Show | None) -> None:
        current.generating = True
        if show is not None:
            show(current)
        current.generate = run_transformers(self.target, current.request)
        current.generating = False

    def _take_turns(self, current: Round, show: Show | None) -> None:
        waiting = list(current.decodings.values())
        if current.number // 2 % 2 == 1:
            waiting.reverse()
        wait_for(self.target.device)
        while waiting:
            for decoding in tuple(waiting):
                if not decoding.advance(TURN_SECONDS):
                    waiting.remove(decoding)
                if show is not None:
                    show(current)

    def _verify_clock(self, current: Round) -> PhaseClock:
        if self.target.device.type == "cpu":
            return current.decodings[self.draft_name].clock
        again = Decoding(self.engines[self.draft_name], current.request, PhaseClock(synchronize=True))
        again.advance()
        return again.clock


def run_transformers(target: TargetModel, request: Request) -> Run:
    """Run transformers' own greedy `generate` on the same model, prompt and number of tokens."""
    found = Reference(target)([request])
    return Run(found.texts[0], found.seconds, found.acceptance)
