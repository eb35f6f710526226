"""`clover demo`: plain decoding and drafts side by side, live, then as a table and a picture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from clover.drafting import parse_tree
from clover.errors import UserError
from clover.measure.budget import Budget
from clover.measure.comparison import Comparison
from clover.measure.live import Panels
from clover.measure.methods import TRANSFORMERS, Method, make_method
from clover.measure.options import DemoOptions
from clover.measure.report.output import Report, check_outputs, publish, standard_output
from clover.measure.report.progress import Progress
from clover.measure.report.words import mode
from clover.measure.session import HELD_OUT, OWN, PLAIN, LoadedDraft, Session
from clover.measure.speed import Metrics

_MAX_PROMPTS, _NEW_TOKENS = 12, 96
_CPU_DEPTH = 4


def run_demo(
    options: DemoOptions, console: Console | None = None, errors: Console | None = None
) -> tuple[Report, bool]:
    """Measure, show the results, and write the picture and the JSON lines.

    Returns the report, and whether a greedy text differs in a way that rounding does not explain. UserError, if
    possible before anything is measured, if an option, a file or a model cannot be used. `console` is for the report,
    `errors` for the progress; the defaults are standard output and standard error.
    """
    _check(options)
    budget, console = Budget(options.max_minutes), console or standard_output()
    with Progress(Console(quiet=True) if options.quiet else errors) as progress:
        progress.say("loading target and drafts")
        lengths = options.max_new_tokens or _NEW_TOKENS, _MAX_PROMPTS
        session = Session.load(options, options.drafts or None, options.prompts, *lengths, HELD_OUT)
        methods = [
            make_method(PLAIN, session),
            make_method(TRANSFORMERS, session),
            *drafted_methods(session, options),
        ]
        progress.say("warming up")
        temperatures = (0.0, options.temperature) if options.temperature else (0.0,)
        comparison = Comparison.prepare(
            session, methods, (1,), temperatures, budget, options.max_new_tokens is None
        )
        panels = Panels(console, session.target.require_tokenizer())
        with ExitStack() as stack:
            live = panels.fits and not options.quiet
            if live:
                stack.enter_context(progress.paused())
                stack.enter_context(panels)
            comparison.run(1, progress, panels.show if live else None)
    found = comparison.metrics()
    named = options.drafts or (() if options.target is None else [one.name for one in session.drafts])
    models = {"target": session.target_name, "drafts": ", ".join(named) or "embedded"}
    report = comparison.report(_title(found), session.provenance("demo", options), models, found)
    line = "the same for a model of your own begins with: clover cost --target DIR"
    publish(report, console, options.json, options.picture, lines=[line] if options.target is None else ())
    return report, any(one.defect for one in comparison.differences)


def _check(options: DemoOptions) -> None:
    """Raise UserError, before any time is spent, for errors that would otherwise appear at the end."""
    tree = None if options.tree is None else parse_tree(options.tree)
    if options.temperature and tree and not tree.exact:
        raise UserError(
            "sampled text from a drawn tree has the distribution of plain decoding, not its tokens, and the demo "
            "compares tokens; give another tree or --temperature 0"
        )
    if tree and not tree.needs_draft:
        raise UserError(f"--tree {options.tree} shows no draft; leave it out, plain decoding is always shown")
    check_outputs(options.json, options.picture)


def drafted_methods(session: Session, options: DemoOptions) -> Iterator[Method]:
    """Yield a method for each draft, named by `draft_names`; drafts of the package keep their own names."""
    drafts = session.drafts
    names = draft_names(drafts) if options.drafts else [one.name.rpartition("/")[2] for one in drafts]
    for name, draft in zip(names, drafts, strict=True):
        yield Method(name, session.engine(options.tree or _usual_tree(draft), draft))


def _usual_tree(draft: LoadedDraft) -> str:
    """Return a chain if the draft has no tree and runs on a CPU, because each row takes time there; else its tree."""
    if draft.model.config.tree is not None or draft.model.target.device.type != "cpu":
        return OWN
    return f"chain:{min(_CPU_DEPTH, draft.model.max_depth)}"


def draft_names(drafts: Sequence[LoadedDraft]) -> list[str]:
    """Return a name for each draft: its system if that is unique, else its directory's name, else its path."""
    taken = Counter([*(one.system for one in drafts), PLAIN, TRANSFORMERS])
    folders = Counter([*taken, *(Path(one.place).name for one in drafts)])
    names = []
    for one in drafts:
        folder = Path(one.place).name
        names.append(one.system if taken[one.system] == 1 else folder if folders[folder] == 1 else one.name)
    if len(set(names)) < len(names):
        raise UserError("two of the drafts are the same; name each once")
    return names


def _title(found: Sequence[Metrics]) -> str:
    """Return a headline: the speed-up of the best method, for greedy and for sampled text."""
    drafted = [one for one in found if one.ideal_share is not None]
    best = max(drafted, key=lambda one: (one.temperature == 0, one.speedup))
    gains = [f"{one.speedup:.2f}× {mode(one.temperature)}" for one in drafted if one.method == best.method]
    same = ", identical output" if all(one.identical for one in drafted) else ""
    return f"{best.label}: {', '.join(gains)}{same}"
