"""`clover demo`: plain decoding and drafts side by side, live, then as a table and a picture."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from clover.drafting import parse_tree
from clover.errors import UserError
from clover.measure.bench import TRANSFORMERS, make_method
from clover.measure.live import Panels, describe
from clover.measure.options import DemoOptions
from clover.measure.report.output import Report, check_outputs, publish, standard_output
from clover.measure.report.progress import Progress
from clover.measure.report.words import number_of
from clover.measure.rounds import Round, Show, TextDifference, decode_round, find_differences
from clover.measure.session import HELD_OUT, OWN, PLAIN, LoadedDraft, Session
from clover.measure.speed import Method, measure_runs
from clover.measure.speed_report import make_report
from clover.measure.timing import warm_up

TIME_LIMIT = 210.0  # seconds for everything up to the table
_MAX_PROMPTS, _NEW_TOKENS = 12, 96
_FEWEST_PROMPTS, _FEWEST_TOKENS = 4, 24  # on a slow target: so many prompts, at the cost of tokens
_TIMED_TOKENS = 16
_CPU_DEPTH = 4
Clock = Callable[[], float]


def run_demo(
    options: DemoOptions,
    console: Console | None = None,
    errors: Console | None = None,
    time_limit: float = TIME_LIMIT,
    clock: Clock = time.perf_counter,
) -> tuple[Report, bool]:
    """Measure, show, and write the picture and the JSON file.

    Returns the report, and whether a greedy text differs in a way that rounding does not explain. UserError if an
    option, a file or a model cannot be used; before anything is measured where possible.

    Args:
        console, errors: for the report and for the progress; standard output and error when left out.
        time_limit: seconds for everything up to the table, by `clock`, unless the number of tokens is an option.
    """
    _check(options)
    started = clock()
    console = console or standard_output()
    with Progress(Console(quiet=True) if options.quiet else errors) as progress:
        progress.say("loading target and drafts")
        demo = _load(options, clock)
        progress.say("warming up")
        warm_up({one.name: one.decode for one in demo.methods}, demo.session.batches(1)[0])
        deadline = float("inf")
        if options.max_new_tokens is None:
            deadline = started + time_limit
            demo = replace(demo, tokens=demo.affordable_tokens(deadline))
        rounds = demo.run(deadline, console, progress)
    differences = list(find_differences(demo.session.target, rounds))
    report = _report(demo, rounds, differences, clock() - started)
    publish(report, console, options.json, options.picture)
    return report, any(one.defect for one in differences)


def _check(options: DemoOptions) -> None:
    """Raise a UserError, before any time is spent, for what would fail at the end."""
    tree = None if options.tree is None else parse_tree(options.tree)
    if options.temperature and tree and not tree.exact:
        raise UserError(
            "sampled text from a drawn tree has the distribution of plain decoding, not its tokens, and the demo "
            "compares tokens; give another tree or --temperature 0"
        )
    if tree and not tree.needs_draft:
        raise UserError(f"--tree {options.tree} shows no draft; leave it out, plain decoding is always shown")
    check_outputs(options.json, options.picture)


@dataclass(frozen=True)
class Demo:
    """A benchmark at batch 1 in one round, greedy and sampled, that can be watched.

    `tokens` is the most new tokens per prompt, `clock` what its deadlines are read from.
    """

    options: DemoOptions
    session: Session
    methods: tuple[Method, ...]
    tokens: int
    clock: Clock

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Return the temperatures that each prompt is decoded at."""
        return (0.0, self.options.temperature) if self.options.temperature else (0.0,)

    def affordable_tokens(self, deadline: float) -> int:
        """Time every method, and return how many new tokens let some prompts end before the deadline.

        They are fewer than `tokens` where otherwise hardly a prompt would end: medians need several.
        """
        (request,) = self.session.batches(1)[0]
        started = self.clock()
        for method in self.methods:
            method.decode([replace(request, max_new_tokens=_TIMED_TOKENS)])
        now, prompts = self.clock(), min(_FEWEST_PROMPTS, len(self.session.prompts))
        seconds = max(now - started, 1e-9) / _TIMED_TOKENS * len(self.temperatures) * prompts
        return max(_FEWEST_TOKENS, min(self.tokens, int((deadline - now) / seconds)))

    def run(self, deadline: float, console: Console, progress: Progress) -> list[Round]:
        """Decode all prompts, or those that end before the deadline; live where there is a terminal for it."""
        total, longest, began = len(self.session.prompts), 0.0, self.clock()
        panels = Panels(console, self.session.target.tokenizer, total)
        live = panels.fits and not self.options.quiet
        progress.begin(1.0)
        progress.say("decoding")
        with ExitStack() as stack:
            if live:
                stack.enter_context(progress.paused())
                stack.enter_context(panels)
            for number in range(total):
                started = self.clock()
                if number and started + longest > deadline:
                    break
                for temperature in self.temperatures:
                    done = self._round(number, temperature, panels.show if live else None)
                    panels.rounds.append(done)
                    if not live:
                        progress.log(describe(done))
                now = self.clock()
                longest = max(longest, now - started)
                progress.reach(max((number + 1) / total, (now - began) / max(deadline - began, longest)))
        return panels.rounds

    def _round(self, number: int, temperature: float, show: Show | None) -> Round:
        """Decode one prompt with every method."""
        (request,) = self.session.batches(1, temperature)[number]
        request = replace(request, max_new_tokens=self.tokens)
        text = str(self.session.target.require_tokenizer().decode(list(request.prompt)))
        return decode_round(Round(number, text, request, self.methods), show or (lambda current: None))


def _load(options: DemoOptions, clock: Clock) -> Demo:
    tokens = options.max_new_tokens or _NEW_TOKENS
    session = Session.load(options, options.drafts or None, options.prompts, tokens, _MAX_PROMPTS, HELD_OUT)
    methods = [make_method(name, session) for name in (PLAIN, TRANSFORMERS)]
    return Demo(options, session, (*methods, *drafted_methods(session, options)), tokens, clock)


def drafted_methods(session: Session, options: DemoOptions) -> Iterator[Method]:
    """Yield a method for each draft, named by `method_names`; drafts of the package have names already."""
    drafts = session.drafts
    names = method_names(drafts) if options.drafts else [one.name.rpartition("/")[2] for one in drafts]
    for name, draft in zip(names, drafts, strict=True):
        tree = options.tree or _usual_tree(draft)
        yield Method.of_engine(name, session.engine(tree, draft))


def _usual_tree(draft: LoadedDraft) -> str:
    """Return a chain where the draft names no tree and runs on a CPU, where each row takes time; else its own tree."""
    if draft.model.config.tree is not None or draft.model.target.device.type != "cpu":
        return OWN
    return f"chain:{min(_CPU_DEPTH, draft.model.max_depth)}"


def method_names(drafts: Sequence[LoadedDraft]) -> list[str]:
    """Return a name for each draft: its system; if several have one, its directory, or else its path."""
    systems, folders = Counter(one.system for one in drafts), Counter(Path(one.place).name for one in drafts)
    reserved = (*systems, PLAIN, TRANSFORMERS)
    names = []
    for one in drafts:
        folder = Path(one.place).name
        if systems[one.system] == 1:
            names.append(one.system)
        else:
            names.append(one.name if folders[folder] > 1 or folder in reserved else folder)
    if len(set(names)) < len(names):
        raise UserError("two of the drafts are the same; name each once")
    return names


def _report(
    demo: Demo, rounds: Sequence[Round], differences: Sequence[TextDifference], seconds: float
) -> Report:
    options, session, found = demo.options, demo.session, []
    for temperature in demo.temperatures:
        chosen = [one for one in rounds if one.temperature == temperature]
        runs = {one.name: [[done.runs[one.name] for done in chosen]] for one in demo.methods}
        found += measure_runs(demo.methods, runs, [chosen[0].request])
    drafted = [one for one in found if one.ideal_share is not None]
    best = max(drafted, key=lambda one: (one.temperature == 0, one.speedup))
    title = f"{best.label}: {best.speedup:.2f}× the speed of plain decoding"
    title += ", identical output" if all(one.identical for one in drafted) else ""
    named = options.drafts or (() if options.target is None else [one.name for one in session.drafts])
    models = {"target": session.target_name, "drafts": ", ".join(named) or "embedded"}
    count, total = len(rounds) // len(demo.temperatures), len(session.prompts)
    notes = [("differs", one.words) for one in differences]
    why = "to end in time; --max-new-tokens lifts that limit"
    if demo.tokens < session.max_new_tokens:
        notes.append(("shortened", f"{demo.tokens} new tokens in place of {session.max_new_tokens}, {why}"))
    if count < total:
        notes.append(("left out", f"{total - count} of {total} prompts, {why}"))
    run = f"{number_of(count, 'prompt')}, {demo.tokens} new tokens each at most, batch 1, methods in turn"
    return make_report(
        title,
        session.provenance("demo", options),
        list(models.items()),
        f"{run}; {seconds:.0f} s in all",
        found,
        {
            **models,
            "prompts": count,
            "max_new_tokens": demo.tokens,
            "seconds": seconds,
            "methods": [asdict(one) for one in found],
            "differences": [asdict(one) for one in differences],
        },
        notes,
    )
