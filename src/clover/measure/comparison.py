"""Compare methods that decode the prompts of a session in turn, while there is time; and report the results.

`clover bench` and `clover demo` both use this. They differ in their methods, and in the output during the run.
Here whole texts take turns, because a user waits for whole texts. In `steps` single steps take turns, because their
times are known after a short measurement.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import TypeVar

from typing_extensions import Self

from clover.engine import Request
from clover.measure.budget import Budget
from clover.measure.ceilings import Limits
from clover.measure.methods import Method
from clover.measure.report.output import Report
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table
from clover.measure.report.words import duration, mode, number_of, rate, times
from clover.measure.session import AUTO, Session
from clover.measure.speed import Measured, Metrics, TextDifference, find_differences
from clover.measure.speed_report import make_speed_report
from clover.measure.timing import Run, TimedDecoding
from clover.metrics import Acceptance

TURN_SECONDS = 0.1  # in the live display
_COLD_TOKENS, _WARM_TOKENS = 2, 8
_SHORT = 1.0  # seconds; a second warm-up runs all methods only if that takes less
_FEWEST_TOKENS, _FEWEST_PROMPTS = 24, 4  # a slow target decodes at least so many prompts, with fewer tokens
_LOOP, _PHRASE = 24, 16  # the length of a loop at the end of a text, and its longest period
T = TypeVar("T")
Show = Callable[["Setting"], None]


@dataclass
class Setting:
    """Batches of one size and temperature, which several methods decode in turn, plain decoding first.

    Attributes:
        prompts: how many prompts are different, because `make_batches` fills up the last batch with the first prompts.
        runs: for each method's name, the rounds of each batch.
        turns: how many turns are over.
        decodings, finished: in the current turn, the decodings begun on our engines, and the finished runs.
    """

    methods: Sequence[Method]
    batches: Sequence[Sequence[Request]]
    prompts: int | None = None
    runs: dict[str, list[list[Run]]] = field(default_factory=dict)
    turns: int = 0
    decodings: dict[str, TimedDecoding] = field(default_factory=dict)
    finished: dict[str, Run] = field(default_factory=dict)

    @property
    def batch(self) -> Sequence[Request]:
        """Return the current batch; the first follows after the last."""
        return self.batches[self.turns % len(self.batches)]

    @property
    def temperature(self) -> float:
        """Return the temperature of all requests."""
        return self.batch[0].params.temperature

    @property
    def name(self) -> str:
        """Return batch size and temperature as text."""
        batch = f"batch {len(self.batch)}, " if len(self.batch) > 1 else ""
        return batch + mode(self.temperature)

    def take_turn(
        self,
        show: Show | None = None,
        seconds: float = TURN_SECONDS,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Decode the next batch once with every method; `tell` is called with a line about each method.

        The order of the methods changes from turn to turn, so that other load on the machine slows all equally. If
        `show` is given, engines alternate after about `seconds`, and `show` is called after each slice; its time does
        not count. transformers' `generate` cannot be paused, so it runs as a whole.
        """
        waiting = order_of_turn(self.methods, self.turns)
        self.decodings, self.finished = {}, {}
        while waiting:
            for one in tuple(waiting):
                run = self._advance(one, seconds if show else inf)
                if run is not None:
                    waiting.remove(one)
                    self.finished[one.name] = run
                    if tell is not None:
                        tell(f"{self.name}, {one.label} {rate(run.tokens / run.seconds)} tokens/s")
                if show is not None:
                    show(self)
        for name, run in self.finished.items():
            rounds = self.runs.setdefault(name, [])
            if self.turns < len(self.batches):
                rounds.append([])
            rounds[self.turns % len(self.batches)].append(run)
        self.turns += 1

    def _advance(self, method: Method, seconds: float) -> Run | None:
        if method.engine is None:
            return method.decode(self.batch)
        if method.name not in self.decodings:
            self.decodings[method.name] = TimedDecoding(method.engine, self.batch)
        return self.decodings[method.name].advance(seconds)

    @property
    def measured(self) -> list[Measured]:
        """Return the measurements of each method so far, without the times of a step."""
        return (
            [Measured(one, self.runs[one.name], self.prompts) for one in self.methods] if self.turns else []
        )

    @property
    def words(self) -> str:
        """Return the speeds so far in one line, with speed-ups, and with τ for methods with a draft."""
        plain, *others = self.measured
        parts = [f"plain decoding {rate(plain.speed)}"]
        for one in others:
            tau = f", τ {one.tau.value:.2f}" if one.method.drafts else ""
            parts.append(f"{one.method.label} {rate(one.speed)} ({one.speedup(plain).value:.2f}×{tau})")
        return f"{self.name}, {number_of(len(plain.texts), 'text')}, tokens/s: " + ", ".join(parts)

    @property
    def table(self) -> Table:
        """Return the speeds so far as a table, without the values that are known only at the end."""
        plain = self.measured[0]
        columns: dict[str, Callable[[Measured], str]] = {
            f"{self.name}, {number_of(len(plain.texts), 'text')}": lambda one: one.method.label,
            "tokens/s": lambda one: rate(one.speed),
            "speed-up": lambda one: times(one.speedup(plain).value),
            "τ": lambda one: f"{one.tau.value:.2f}",
        }
        return Table.of("", self.measured, columns, strong=lambda one: False)

    def metrics(self, limits: Limits | None) -> list[Metrics]:
        """Return the metrics of all methods."""
        found = [one.with_steps(self.batches[0]) for one in self.measured]
        return [one.metrics(found[0], len(self.batch), self.temperature, limits) for one in found]


def order_of_turn(methods: Sequence[T], turn: int) -> list[T]:
    """Return the methods in the order of a turn. Each is first in turn, and every second order is reversed.

    >>> ["".join(order_of_turn("abc", turn)) for turn in range(4)]
    ['abc', 'bac', 'cab', 'acb']
    """
    start = turn % len(methods)
    order = [*methods[start:], *methods[:start]]
    return order if turn % 2 == 0 else [order[0], *order[:0:-1]]


def measure_methods(
    methods: Sequence[Method],
    batches: Sequence[Sequence[Request]],
    rounds: int,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Measured]:
    """Decode all batches, of one size and temperature, `rounds` times with every method, after a warm-up.

    `progress` is called with the finished share, 0 … 1.
    """
    setting, total = Setting(methods, batches), rounds * len(batches)
    warm_up(methods, batches[0])
    for _ in range(total):
        setting.take_turn()
        progress(setting.turns / total)
    return [one.with_steps(batches[0]) for one in setting.measured]


@dataclass
class Comparison:
    """Methods that decode the prompts of a session at several settings, within a time `budget`.

    Attributes:
        tokens: most new tokens per prompt.
        rounds: how often every method decodes all prompts, at most.
    """

    session: Session
    methods: Sequence[Method]
    settings: list[Setting]
    budget: Budget
    tokens: int
    rounds: int = 1

    @classmethod
    def prepare(
        cls,
        session: Session,
        methods: Sequence[Method],
        sizes: Sequence[int],
        temperatures: Sequence[float],
        budget: Budget,
        shorten_texts: bool,
    ) -> Self:
        """Warm up, and shorten the texts if otherwise not even a few prompts would end in time."""
        settings, tokens = list[Setting](), session.max_new_tokens
        for size, temperature in product(sizes, temperatures):
            able = [one for one in methods if size == 1 or not one.one_text_only]
            settings.append(Setting(able, session.batches(size, temperature), len(session.prompts)))
        seconds = [warm_up(one.methods, one.batch) for one in settings if one.temperature == temperatures[0]]
        if shorten_texts:
            turns = len(temperatures) * min(_FEWEST_PROMPTS, len(settings[0].batches))
            tokens = affordable_tokens(sum(seconds) * turns, budget.left, tokens)
            for one in settings:
                one.batches = [shorten(batch, tokens) for batch in one.batches]
        return cls(session, methods, settings, budget, tokens)

    def run(self, rounds: int, progress: Progress, show: Show | None = None) -> None:
        """Decode all prompts `rounds` times, or until the time is up, or until Ctrl-C.

        `progress` gets the finished share and, unless `show` is given, sometimes the speeds so far.
        """
        self.rounds = rounds
        self.budget.start(progress)
        progress.begin(1.0)
        with self.budget.until_interrupted():
            for done, one in enumerate(self.budget.each(self._turns), 1):
                progress.say(one.name)
                first = not show and not one.turns
                one.take_turn(show, tell=progress.say if first else None)
                if first:
                    progress.console.print(one.table.rich(progress.console.width))
                elif not show and one.turns.bit_count() == 1:  # 2, 4, 8, …
                    progress.log(one.words)
                progress.reach(max(done / len(self._turns), self.budget.share))

    @property
    def _turns(self) -> list[Setting]:
        """Return the settings in the order of their turns: one batch of each setting, then the next batch of each."""
        most = self.rounds * max(len(one.batches) for one in self.settings)
        return [one for turn in range(most) for one in self.settings if turn < self.rounds * len(one.batches)]

    @property
    def measured(self) -> list[Setting]:
        """Return the settings that had at least one turn."""
        return [one for one in self.settings if one.turns]

    @cached_property
    def differences(self) -> list[TextDifference]:
        """Return the differences of our engines' texts from plain decoding's: greedy texts, or all of exact targets."""
        found, target = list[TextDifference](), self.session.target
        for one in self.measured:
            requests = [request for batch in one.batches for request in batch]
            if one.temperature and not target.exact:
                continue
            engines = [known for known in one.measured if known.method.engine]
            ours = [known for known in engines if known.method.comparable(one.temperature)]
            found += find_differences(target, requests, ours)
        return found

    def metrics(self, limits: Limits | None = None) -> list[Metrics]:
        """Return the metrics of all methods at all settings."""
        return [found for one in self.measured for found in one.metrics(limits)]

    def report(
        self,
        title: str,
        origin: Provenance,
        models: Mapping[str, str],
        found: Sequence[Metrics],
        limits: Limits | None = None,
    ) -> Report:
        """Return the report; `models` begins with the target, and `found` has all metrics."""
        first, prompts = self.settings[0], len(self.session.prompts)
        prompts, rounds = min(first.turns * len(first.batch), prompts), first.turns / len(first.batches)
        times = f"{rounds:.2g} rounds" if rounds > 1 else "1 round"
        count = number_of(prompts, "prompt") + self.session.left_out_words
        run = f"{count}, {self.tokens} new tokens each at most, {times} in turn after a warm-up, "
        run += f"{duration(self.budget.used)} in all"
        more = {**models, "prompts": prompts, "max_new_tokens": self.tokens, "seconds": self.budget.used}
        more |= {"limits": asdict(limits)} if limits else {}
        data = [asdict(one) | more for one in found]
        facts = [*models.items(), *([limits.fact] if limits else []), *self.budget.facts]
        exact = self.session.target.exact
        return make_speed_report(title, origin, facts, run, found, data, self._notes(found), exact)

    def _notes(self, found: Sequence[Metrics]) -> Iterator[tuple[str, str]]:
        """Yield notes for the reader of the tables, each with its label."""
        if any(len(one.batch) > 1 for one in self.settings):
            unable = [method.label for method in self.methods if method.one_text_only]
            yield from ((label, "no batches: transformers runs it on one text at a time") for label in unable)
        yield from (("differs", one.words) for one in self.differences)
        greedy = [text for one in self.measured if not one.temperature for text, *_ in one.measured[0].texts]
        if loops := sum(map(repeats, greedy)):
            words = (
                f"{loops} of {number_of(len(greedy), 'greedy text')} end in a loop, which is easy to draft"
            )
            yield "loops", words
        runs = [run for one in self.measured for rounds in one.runs.get(AUTO, ()) for run in rounds]
        if runs:
            yield AUTO, auto_words(sum((run.acceptance for run in runs), Acceptance()), found)
        most = self.session.max_new_tokens
        if self.tokens < most:
            words = (
                f"{self.tokens} new tokens in place of {most}, to end in time; --max-new-tokens lifts that"
            )
            yield "shortened", words
        done, total = sum(one.turns for one in self.settings), len(self._turns)
        if done < total:
            yield "ended", f"after {done} of {total} batches, by {self.budget.why}"
        yield from (("left out", one.name) for one in self.settings if not one.turns)


def shorten(batch: Sequence[Request], tokens: int) -> list[Request]:
    """Return the requests with at most `tokens` new tokens."""
    return [replace(one, max_new_tokens=min(one.max_new_tokens, tokens)) for one in batch]


def warm_up(methods: Sequence[Method], batch: Sequence[Request]) -> float:
    """Decode the first few tokens of a batch with every method; return the seconds for one token of all of them.

    The second, timed pass runs only the first method if that is slow; the others are assumed to be as slow.
    """
    for one in methods:
        one.decode(shorten(batch, _COLD_TOKENS))
    started = time.perf_counter()
    methods[0].decode(shorten(batch, _WARM_TOKENS))
    seconds = len(methods) * (time.perf_counter() - started)
    if seconds < _SHORT:
        for one in methods[1:]:
            one.decode(shorten(batch, _WARM_TOKENS))
        seconds = time.perf_counter() - started
    return seconds / _WARM_TOKENS


def affordable_tokens(seconds: float, left: float, most: int) -> int:
    """Return how many new tokens per prompt fit into the time `left`, if one token of all takes so many seconds.

    >>> affordable_tokens(0.1, 60.0, 128), affordable_tokens(1.0, 60.0, 128), affordable_tokens(9.0, 60.0, 128)
    (128, 60, 24)
    """
    return min(most, max(_FEWEST_TOKENS, int(left / max(seconds, 1e-9))))


def repeats(text: Sequence[int]) -> bool:
    """Return whether a text ends in a repeated phrase of at most 16 tokens.

    >>> repeats([1, 2, 3, *[4, 5] * 13]), repeats(range(40))
    (True, False)
    """
    periods = ((period, max(_LOOP, 2 * period)) for period in range(1, _PHRASE + 1))
    return any(
        len(text) >= length + period and text[-length:] == text[-length - period : -period]
        for period, length in periods
    )


def auto_words(auto: Acceptance, found: Sequence[Metrics]) -> str:
    """Return how often auto drafted, with advice if that was rare although another tree was faster."""
    drafted = auto.attempts[0] if auto.attempts else 0
    fastest = max((one for one in found if one.ideal_share is not None), key=lambda one: one.speedup)
    advice = "; run clover tune" if fastest.method != AUTO and drafted < auto.steps / 2 else ""
    return f"drafted in {drafted:,} of {number_of(auto.steps, 'step')}{advice}"
