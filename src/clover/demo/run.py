"""The demo from its options to the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from clover import assets
from clover.api import load
from clover.bench.methods import PLAIN, TRANSFORMERS, Method, of_engine, of_transformers
from clover.bench.metrics import Measured, Metrics, metrics
from clover.bench.report import draw, explanations, speed_table
from clover.bench.setup import find_prompts
from clover.demo.live import Panels, describe
from clover.demo.options import DemoOptions
from clover.demo.race import Round, Show, race
from clover.engine import Engine
from clover.interleaved import make_batches
from clover.report.figure import Picture
from clover.report.output import Report, publish, standard_output
from clover.report.progress import Progress
from clover.report.provenance import Provenance
from clover.report.words import system_name
from clover.target import TargetModel

TIME_LIMIT = 105.0  # seconds for everything up to the table
MIN_TOKENS, MAX_TOKENS = 16, 128
_PROMPTS = 12
_WARM_UP_TOKENS, _WARM_UP_SECONDS = (4, 24), 10.0
_MIN_WIDTH, _MIN_HEIGHT = 75, 20


@dataclass(frozen=True)
class Difference:
    """Where a greedy text of a draft leaves that of plain decoding.

    Args:
        method: its name.
        prompt: its number, from 1.
        position: of the first new token that differs, from 1.
        gap: how far apart the target's logits of the two tokens are when it reads the text up to there at once;
            None where one text goes on after the other has ended.
    """

    method: str
    prompt: int
    position: int
    gap: float | None

    @property
    def words(self) -> str:
        """The difference in a sentence."""
        gap = (
            "one text ends there" if self.gap is None else f"the two tokens' logits are {self.gap:.2g} apart"
        )
        return f"{system_name(self.method)}, prompt {self.prompt}, parts at new token {self.position}: {gap}"


@dataclass(frozen=True)
class DemoResult:
    """What a demo found: metrics per temperature and method, and texts that differ from plain decoding's."""

    report: Report
    metrics: list[Metrics]
    differences: list[Difference]

    @property
    def defect(self) -> bool:
        """Whether a greedy text differs in a way that rounding does not explain: only a tie of two logits can."""
        assert self.report.provenance is not None
        exact = self.report.provenance.dtype in ("float32", "float64")
        return exact and any(found.gap is None or found.gap > 1e-3 for found in self.differences)


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
    options.check()
    console = console or standard_output()
    errors = Console(quiet=True) if options.quiet else errors
    with Progress(errors) as progress:
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
        self.target = TargetModel.load(
            options.target or str(assets.TARGET), dtype=options.dtype, device=options.device,
            trust_remote_code=options.trust_remote_code,
        )  # fmt: skip
        self.methods = _methods(options, self.target)
        self.prompts = find_prompts(
            options.prompts, self.target, options.max_new_tokens or MIN_TOKENS, _PROMPTS
        )

    def affordable_tokens(self, deadline: float) -> int:
        """Warm everything up, and tell how many tokens per prompt end before the deadline."""
        cost = 0.0
        for tokens in _WARM_UP_TOKENS:
            if cost * tokens > _WARM_UP_SECONDS:
                break
            started = time.perf_counter()
            rounds = [self.round(0, temperature, tokens) for temperature in self.options.temperatures]
            cost = (time.perf_counter() - started) / max(one.runs[PLAIN].tokens for one in rounds)
        affordable = 0.9 * (deadline - time.perf_counter()) / (cost * len(self.prompts))
        return max(MIN_TOKENS, min(MAX_TOKENS, int(affordable)))

    def round(self, number: int, temperature: float, tokens: int, show: Show = lambda current: None) -> Round:
        """Decode one prompt with every method."""
        batches = make_batches(self.prompts, 1, temperature, tokens, self.target.context_length)
        assert self.target.tokenizer is not None
        text = str(self.target.tokenizer.decode(list(self.prompts[number])))
        return race(Round(number, text, batches[number][0], self.methods), show)

    def run(self, tokens: int, deadline: float, console: Console, progress: Progress) -> list[Round]:
        """Decode all prompts, or those that end before the deadline; live where there is a terminal for it."""
        temperatures, rounds, longest = self.options.temperatures, [], 0.0
        roomy = console.width >= _MIN_WIDTH and console.height >= _MIN_HEIGHT
        live = console.is_terminal and not console.is_dumb_terminal and roomy and not self.options.quiet
        panels = Panels(console, self.target.tokenizer, len(self.prompts))
        with ExitStack() as stack:
            if live:
                stack.enter_context(progress.paused())
                stack.enter_context(panels)
            progress.begin(len(self.prompts) * len(temperatures))
            progress.say("decoding")
            for number in range(len(self.prompts)):
                started = time.perf_counter()
                if rounds and started + longest > deadline:
                    break
                for temperature in temperatures:
                    rounds.append(
                        self.round(number, temperature, tokens, panels.show if live else lambda _: None)
                    )
                    panels.rounds.append(rounds[-1])
                    progress.advance()
                    if not live:
                        progress.log(describe(rounds[-1]))
                longest = max(longest, time.perf_counter() - started)
        return rounds

    def result(self, rounds: Sequence[Round], tokens: int, seconds: float) -> DemoResult:
        """The report of finished rounds."""
        options, found = self.options, self._metrics(rounds)
        differences = _differences(self.target, rounds)
        drafted = [one for one in found if one.ideal_share is not None]
        best = max(
            (one for one in drafted if one.temperature == found[0].temperature), key=lambda one: one.speedup
        )
        every = all(one.identical for one in drafted)
        title = f"{best.label}: {best.speedup:.2f}× the speed of plain decoding"
        title += ", identical output" if every else ""
        origin = Provenance.here(options.command, self.target.device, self.target.dtype)
        prompts = len(rounds) // len(options.temperatures)
        drafts = ", ".join(options.drafts) or "embedded"
        run = f"{prompts} prompts, {tokens} new tokens each at most, batch 1, methods in turn; {seconds:.0f} s in all"
        notes = [*explanations(found), *(("differs", one.words) for one in differences)]
        if prompts < len(self.prompts):
            left = f"{len(self.prompts) - prompts} of {len(self.prompts)} prompts, to end within two minutes"
            notes.append(("left out", f"{left}; --max-new-tokens lifts that limit"))
        words = f"target {options.target or 'embedded'}; {run}"
        report = Report(
            title,
            origin,
            [("target", options.target or "embedded"), ("drafts", drafts), ("run", run)],
            [speed_table(found)],
            [Picture(title, lambda: draw(found, title, words, origin.line))],
            {
                "target": options.target,
                "drafts": list(options.drafts),
                "prompts": prompts,
                "max_new_tokens": tokens,
                "seconds": seconds,
                "methods": [asdict(one) for one in found],
                "differences": [asdict(one) for one in differences],
            },
            notes,
        )
        return DemoResult(report, found, differences)

    def _metrics(self, rounds: Sequence[Round]) -> list[Metrics]:
        found = []
        for temperature in self.options.temperatures:
            chosen = [one for one in rounds if one.temperature == temperature]
            measured = [
                Measured.of(method, [[one.runs[method.name] for one in chosen]], [chosen[0].request])
                for method in self.methods
            ]
            found += [metrics(one, measured[0], 1, temperature) for one in measured]
        return found


def _methods(options: DemoOptions, target: TargetModel) -> list[Method]:
    """Plain decoding, `generate`, and the drafts, each named by its system; of one system by their directories."""
    places = options.drafts or tuple(map(str, getattr(assets, "DRAFTS", {"": assets.DRAFT}).values()))
    engines = [load(target, place, method="draft", tree=options.tree).engine for place in places]
    systems = [_system(engine) for engine in engines]
    several = [name for name, count in Counter(systems).items() if count > 1]
    methods = [of_engine(PLAIN, Engine(target)), of_transformers(TRANSFORMERS, target)]
    for place, system, engine in zip(places, systems, engines, strict=True):
        methods.append(of_engine(Path(place).name if system in several else system, engine, options.tree))
    return methods


def _system(engine: Engine) -> str:
    assert engine.draft is not None
    return str(engine.draft.config.model_type)


def _differences(target: TargetModel, rounds: Sequence[Round]) -> list[Difference]:
    """Where greedy texts of drafts differ from plain decoding, and how near a tie the target is there."""
    found = []
    for one in rounds:
        plain = one.runs[PLAIN].texts[0]
        for name in one.decodings:
            text = one.runs[name].texts[0]
            if one.temperature == 0 and text != plain:
                found.append(Difference(name, one.number + 1, *_parting(target, one, plain, text)))
    return found


def _parting(
    target: TargetModel, one: Round, plain: tuple[int, ...], other: tuple[int, ...]
) -> tuple[int, float | None]:
    pairs = list(zip(plain, other, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return len(pairs) + 1, None
    text = torch.tensor([[*one.request.prompt, *plain[:position]]], device=target.device)
    with torch.inference_mode():
        logits = target.logits(target.train_forward(text).hidden[0, -1]).double()
    a, b = pairs[position]
    return position + 1, abs(float(logits[a] - logits[b]))
