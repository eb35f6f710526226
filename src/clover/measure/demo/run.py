"""The demo from its options to the report."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from clover import assets
from clover.api import make_engine
from clover.drafting.prompt_lookup import LOOKUP
from clover.drafts import DraftModel, load_usable
from clover.errors import UserError
from clover.measure.bench.methods import PLAIN, TRANSFORMERS, Method, of_engine
from clover.measure.bench.metrics import metrics_of
from clover.measure.bench.report import make_report
from clover.measure.bench.run import Bench
from clover.measure.demo.live import Panels, describe
from clover.measure.demo.rounds import Round, Show, TextDifference, decode_round, find_differences
from clover.measure.interleaved import warm_up
from clover.measure.options import BenchOptions, DemoOptions
from clover.measure.report.output import Report, check_outputs, publish, standard_output
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.options import command_line

TIME_LIMIT = 210.0  # seconds for everything up to the table
_MAX_PROMPTS, _NEW_TOKENS = 12, 96
_FEWEST_PROMPTS, _FEWEST_TOKENS = 4, 24  # on a slow target: so many prompts are wanted, at the cost of tokens
_TIMED_TOKENS = 16
_CPU_DEPTH = 4


def run_demo(
    options: DemoOptions, console: Console | None = None, errors: Console | None = None
) -> tuple[Report, bool]:
    """Measure, show, and write the picture and the JSON file.

    Returns the report, and whether a greedy text differs in a way that rounding does not explain. UserError if an
    option, a file or a model cannot be used; before anything is measured where possible.
    """
    _check(options)
    started = time.perf_counter()
    console = console or standard_output()
    with Progress(Console(quiet=True) if options.quiet else errors) as progress:
        progress.say("loading target and drafts")
        demo = _Demo(options)
        progress.say("warming up")
        warm_up({one.name: one.decode for one in demo.methods}, demo.bench.batches(1, 0.0)[0])
        deadline = float("inf")
        if options.max_new_tokens is None:
            deadline = started + TIME_LIMIT
            demo.shorten(deadline)
        rounds = demo.run(deadline, console, progress)
    differences = list(find_differences(demo.target, rounds))
    report = demo.report(rounds, differences, time.perf_counter() - started)
    publish(report, console, options.json, options.picture)
    return report, any(one.defect for one in differences)


def _check(options: DemoOptions) -> None:
    """Raise a UserError, before any time is spent, for what would fail at the end."""
    if options.temperature and (options.tree or "").startswith("drawn:"):
        raise UserError(
            "sampled text from a drawn tree has the distribution of plain decoding, not its tokens, and the demo "
            "compares tokens; give another tree or --temperature 0"
        )
    if options.tree in (PLAIN, LOOKUP):
        raise UserError(f"--tree {options.tree} shows no draft; leave it out, plain decoding is always shown")
    check_outputs(options.json, options.picture)


class _Demo:
    """A benchmark at batch 1 in one round, greedy and sampled, that can be watched."""

    def __init__(self, options: DemoOptions):
        self.options = options
        self.temperatures = (0.0, options.temperature) if options.temperature else (0.0,)
        self.tokens = options.max_new_tokens or _NEW_TOKENS
        shared = {"target": options.target, "prompts": options.prompts, **options.loading}
        shared["draft"] = options.drafts[0] if options.drafts else None
        shown = BenchOptions(max_new_tokens=self.tokens, max_prompts=_MAX_PROMPTS, **shared)
        self.bench = Bench(shown, (PLAIN, TRANSFORMERS))
        self.target = self.bench.target
        self.methods = [*self.bench.methods, *self._drafted()]

    def _drafted(self) -> Iterator[Method]:
        """The drafts, each named by its system; of one system by their directories. Those of the package have names."""
        places, names = self.options.drafts, []
        if not places:
            own = assets.DRAFTS if self.options.target is None else assets.drafts_of(self.target)
            places, names = tuple(map(str, own.values())), [name.rpartition("/")[2] for name in own]
        drafts = [load_usable(assets.draft_place(place), self.target) for place in places]
        names = names or _names(places, [str(draft.config.model_type) for draft in drafts])
        for name, draft in zip(names, drafts, strict=True):
            tree = self.options.tree or _usual_tree(draft)
            yield of_engine(name, make_engine(self.target, draft, tree or "draft"), tree)

    def shorten(self, deadline: float) -> None:
        """Write fewer new tokens where otherwise hardly a prompt would end before the deadline: medians need some."""
        (request,) = self.bench.batches(1, 0.0)[0]
        started = time.perf_counter()
        for method in self.methods:
            method.decode([replace(request, max_new_tokens=_TIMED_TOKENS)])
        now, prompts = time.perf_counter(), min(_FEWEST_PROMPTS, len(self.bench.prompts))
        token = max(now - started, 1e-9) / _TIMED_TOKENS * len(self.temperatures) * prompts
        self.tokens = max(_FEWEST_TOKENS, min(self.tokens, int((deadline - now) / token)))

    def run(self, deadline: float, console: Console, progress: Progress) -> list[Round]:
        """Decode all prompts, or those that end before the deadline; live where there is a terminal for it."""
        total, longest, began = len(self.bench.prompts), 0.0, time.perf_counter()
        panels = Panels(console, self.target.tokenizer, total)
        live = panels.fits and not self.options.quiet
        progress.begin(1.0)
        progress.say("decoding")
        with ExitStack() as stack:
            if live:
                stack.enter_context(progress.paused())
                stack.enter_context(panels)
            for number in range(total):
                started = time.perf_counter()
                if number and started + longest > deadline:
                    break
                for temperature in self.temperatures:
                    done = self._round(number, temperature, panels.show if live else None)
                    panels.rounds.append(done)
                    if not live:
                        progress.log(describe(done))
                now = time.perf_counter()
                longest = max(longest, now - started)
                progress.reach(max((number + 1) / total, (now - began) / max(deadline - began, longest)))
        return panels.rounds

    def _round(self, number: int, temperature: float, show: Show | None) -> Round:
        """Decode one prompt with every method."""
        (request,) = self.bench.batches(1, temperature)[number]
        request = replace(request, max_new_tokens=self.tokens)
        text = str(self.target.require_tokenizer().decode(list(request.prompt)))
        return decode_round(Round(number, text, request, self.methods), show or (lambda current: None))

    def report(
        self, rounds: Sequence[Round], differences: Sequence[TextDifference], seconds: float
    ) -> Report:
        """The report of finished rounds."""
        options, tokens, found = self.options, self.tokens, []
        for temperature in self.temperatures:
            chosen = [one for one in rounds if one.temperature == temperature]
            runs = {one.name: [[done.runs[one.name] for done in chosen]] for one in self.methods}
            found += metrics_of(self.methods, runs, [chosen[0].request])
        drafted = [one for one in found if one.ideal_share is not None]
        best = max(drafted, key=lambda one: (one.temperature == 0, one.speedup))
        title = f"{best.label}: {best.speedup:.2f}× the speed of plain decoding"
        title += ", identical output" if all(one.identical for one in drafted) else ""
        count, total = len(rounds) // len(self.temperatures), len(self.bench.prompts)
        named = options.drafts or (() if options.target is None else assets.drafts_of(self.target))
        models = {"target": options.target or "embedded", "drafts": ", ".join(named) or "embedded"}
        notes = [("differs", one.words) for one in differences]
        why = "to end in time; --max-new-tokens lifts that limit"
        if tokens < self.bench.options.max_new_tokens:
            notes.append(("shortened", f"{tokens} new tokens in place of {_NEW_TOKENS}, {why}"))
        if count < total:
            notes.append(("left out", f"{total - count} of {total} prompts, {why}"))
        return make_report(
            title,
            Provenance.here(command_line("demo", options), self.target.device, self.target.dtype),
            list(models.items()),
            f"{count} prompts, {tokens} new tokens each at most, batch 1, methods in turn; {seconds:.0f} s in all",
            found,
            {
                **models,
                "prompts": count,
                "max_new_tokens": tokens,
                "seconds": seconds,
                "methods": [asdict(one) for one in found],
                "differences": [asdict(one) for one in differences],
            },
            notes,
        )


def _usual_tree(draft: DraftModel) -> str | None:
    """A chain where the draft names no tree and runs on a CPU: each row takes time there. None for the draft's own."""
    if draft.config.tree is not None or draft.target.device.type != "cpu":
        return None
    return f"chain:{min(_CPU_DEPTH, draft.max_depth)}"


def _names(places: Sequence[str], systems: Sequence[str]) -> list[str]:
    """What drafts are called: their system; where several have one, the directory; where that is not enough, its path.

    >>> _names(["a/x", "b/x", "c"], ["recall", "recall", "eagle"])
    ['a/x', 'b/x', 'eagle']
    """
    several, folders = Counter(systems), Counter(Path(place).name for place in places)
    found = []
    for place, system in zip(places, systems, strict=True):
        name = Path(place).name if several[system] > 1 else system
        taken = several[system] > 1 and (folders[name] > 1 or name in (*systems, PLAIN, TRANSFORMERS))
        found.append(place if taken else name)
    if len(set(found)) < len(found):
        raise UserError("two of the drafts are the same; name each once")
    return found
