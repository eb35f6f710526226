"""The demo from its options to the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from clover import assets
from clover.api import load
from clover.bench.methods import PLAIN, TRANSFORMERS, Method, of_engine
from clover.bench.metrics import Measured, Metrics, metrics
from clover.bench.report import draw, explanations, speed_table
from clover.bench.setup import Bench
from clover.demo.differences import Difference, find_differences
from clover.demo.live import Panels, describe
from clover.demo.options import DemoOptions
from clover.demo.race import Round, Show, race
from clover.interleaved import make_batches
from clover.report.figure import Picture
from clover.report.output import Report, publish, standard_output
from clover.report.progress import Progress
from clover.report.provenance import Provenance

TIME_LIMIT = 210.0  # seconds for everything up to the table
MIN_TOKENS, MAX_TOKENS = 16, 128
_WARM_UP_TOKENS, _WARM_UP_SECONDS = (4, 24), 40.0


@dataclass(frozen=True)
class DemoResult:
    """What a demo found: metrics per temperature and method, and texts that differ from plain decoding's."""

    report: Report
    metrics: list[Metrics]
    differences: list[Difference]

    @property
    def defect(self) -> bool:
        """Whether a greedy text differs in a way that rounding does not explain."""
        return any(one.defect for one in self.differences)


def run_demo(
    options: DemoOptions, console: Console | None = None, errors: Console | None = None
) -> DemoResult:
    """Measure, show, and write the picture, the JSON file and the page.

    Args:
        options: what to run.
        console: where panels and table are shown; standard output when left out.
        errors: for lines where there is no terminal for panels; standard error when left out.

    Raises:
        UserError: an option, a file or a model cannot be used; raised before anything is measured where possible.
    """
    started = time.perf_counter()
    console = console or standard_output()
    with Progress(Console(quiet=True) if options.quiet else errors) as progress:
        progress.say("loading target and drafts")
        demo = _Demo(options)
        progress.say("warming up")
        tokens = options.max_new_tokens or demo.affordable_tokens(started + TIME_LIMIT)
        deadline = float("inf") if options.max_new_tokens else started + TIME_LIMIT
        rounds = demo.run(tokens, deadline, console, progress)
    result = demo.result(rounds, tokens, time.perf_counter() - started)
    publish(result.report, console, options.json, options.picture, options.html)
    return result


class _Demo:
    """The models, the methods and the prompts of one run."""

    def __init__(self, options: DemoOptions):
        self.options = options
        self.bench = Bench(options.bench(MIN_TOKENS), (PLAIN, TRANSFORMERS))
        self.target, self.prompts = self.bench.target, self.bench.prompts
        self.temperatures = self.bench.options.temperatures
        self.methods = [*self.bench.methods, *self._drafted()]

    def affordable_tokens(self, deadline: float) -> int:
        """Warm everything up, and tell how many tokens per prompt end before the deadline."""
        cost = 0.0
        for tokens in _WARM_UP_TOKENS:
            if cost * tokens > _WARM_UP_SECONDS:
                break
            started = time.perf_counter()
            rounds = [self._round(0, temperature, tokens) for temperature in self.temperatures]
            cost = (time.perf_counter() - started) / max(one.runs[PLAIN].tokens for one in rounds)
        affordable = 0.9 * (deadline - time.perf_counter()) / (cost * len(self.prompts))
        return max(MIN_TOKENS, min(MAX_TOKENS, int(affordable)))

    def run(self, tokens: int, deadline: float, console: Console, progress: Progress) -> list[Round]:
        """Decode all prompts, or those that end before the deadline; live where there is a terminal for it."""
        panels, longest = Panels(console, self.target.tokenizer, len(self.prompts)), 0.0
        live = panels.fits and not self.options.quiet
        progress.begin(len(self.prompts))
        progress.say("decoding")
        with ExitStack() as stack:
            if live:
                stack.enter_context(progress.paused())
                stack.enter_context(panels)
            for number in range(len(self.prompts)):
                started = time.perf_counter()
                if number and started + longest > deadline:
                    break
                for temperature in self.temperatures:
                    panels.rounds.append(
                        self._round(number, temperature, tokens, panels.show if live else None)
                    )
                    if not live:
                        progress.log(describe(panels.rounds[-1]))
                progress.advance()
                longest = max(longest, time.perf_counter() - started)
        return panels.rounds

    def result(self, rounds: Sequence[Round], tokens: int, seconds: float) -> DemoResult:
        """The report of finished rounds."""
        options, found = self.options, list(self._metrics(rounds))
        differences = list(find_differences(self.target, rounds))
        drafted = [one for one in found if one.ideal_share is not None]
        best = max(drafted, key=lambda one: (one.temperature == 0, one.speedup))
        title = f"{best.label}: {best.speedup:.2f}× the speed of plain decoding"
        title += ", identical output" if all(one.identical for one in drafted) else ""
        origin = Provenance.here(options.command, self.target.device, self.target.dtype)
        count, total = len(rounds) // len(self.temperatures), len(self.prompts)
        run = f"{count} prompts, {tokens} new tokens each at most, batch 1, methods in turn; {seconds:.0f} s in all"
        models = {"target": options.target or "embedded", "drafts": ", ".join(options.drafts) or "embedded"}
        left_out = f"{total - count} of {total} prompts, to end in time; --max-new-tokens lifts that limit"
        words = f"target {models['target']}; {run}"
        report = Report(
            title,
            origin,
            [*models.items(), ("run", run)],
            [speed_table(found)],
            [Picture(title, lambda: draw(found, title, words, origin.line))],
            models
            | {"prompts": count, "max_new_tokens": tokens, "seconds": seconds}
            | {
                "methods": [asdict(one) for one in found],
                "differences": [asdict(one) for one in differences],
            },
            [
                *explanations(found),
                *(("differs", one.words) for one in differences),
                *([("left out", left_out)] if count < total else []),
            ],
        )
        return DemoResult(report, found, differences)

    def _round(self, number: int, temperature: float, tokens: int, show: Show | None = None) -> Round:
        """Decode one prompt with every method."""
        batches = make_batches(self.prompts, 1, temperature, tokens, self.target.context_length)
        assert self.target.tokenizer is not None
        text = str(self.target.tokenizer.decode(list(self.prompts[number])))
        return race(Round(number, text, batches[number][0], self.methods), show or (lambda current: None))

    def _metrics(self, rounds: Sequence[Round]) -> Iterator[Metrics]:
        for temperature in self.temperatures:
            chosen = [one for one in rounds if one.temperature == temperature]
            measured = [
                Measured.of(method, [[one.runs[method.name] for one in chosen]], [chosen[0].request])
                for method in self.methods
            ]
            yield from (metrics(one, measured[0], 1, temperature) for one in measured)

    def _drafted(self) -> Iterator[Method]:
        """The drafts, each named by its system; of one system by their directories."""
        tree = self.options.tree
        places = self.options.drafts or tuple(map(str, assets.DRAFTS.values()))
        engines = [load(self.target, place, method="draft", tree=tree).engine for place in places]
        systems = [str(engine.draft.config.model_type) for engine in engines if engine.draft is not None]
        several = Counter(systems)
        for place, system, engine in zip(places, systems, engines, strict=True):
            yield of_engine(Path(place).name if several[system] > 1 else system, engine, tree)
