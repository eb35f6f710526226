"""`clover bench`: how fast plain decoding, the draft, and transformers' own ways to decode are on this machine."""

from rich.console import Console

from clover.drafting import parse_tree
from clover.engine.compiled.runner import check_compiled
from clover.measure.budget import Budget
from clover.measure.ceilings import measure_limits
from clover.measure.comparison import Comparison, warm_up
from clover.measure.methods import load_assistant, make_method, method_names
from clover.measure.options import BenchOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.session import HELD_OUT, Session
from clover.options import next_command

_NEW_TOKENS = 96


def run_bench(options: BenchOptions, console: Console | None = None, errors: Console | None = None) -> Report:
    """Measure, print the tables, and write the JSON lines and the picture.

    UserError if an option, a file or a model cannot be used; before anything is measured where possible.
    """
    check_outputs(options.json, options.picture)
    check_compiled(options.compile, options.weights, options.exact)
    for tree in options.trees:
        parse_tree(tree)
    budget = Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        lengths = options.max_new_tokens or _NEW_TOKENS, options.max_prompts
        session = Session.load(options, (options.draft,), options.prompts, *lengths, HELD_OUT)
        assistant = None
        if options.assistant is not None:
            assistant = load_assistant(options.assistant, session.target, options.trust_remote_code)
        names = method_names(options.trees, not options.no_reference, assistant is not None)
        methods = [make_method(name, session, assistant, options.compile) for name in names]
        if options.compile:
            progress.say("compiling, which does not count")
            for size in options.batch_sizes:
                warm_up([one for one in methods if one.engine], session.batches(size)[0])
            budget = Budget(options.max_minutes)
        progress.say("warming up")
        limits, settings = measure_limits(session.target), (options.batch_sizes, options.temperatures)
        comparison = Comparison.prepare(session, methods, *settings, budget, options.max_new_tokens is None)
        comparison.run(options.rounds, progress)
    report = comparison.report(
        "Speed-up against plain decoding",
        session.provenance("bench", options),
        {"target": session.target_name, "draft": session.draft.name},
        comparison.metrics(limits),
        limits,
    )
    prompts = () if options.prompts is None else (options.prompts,)
    line = next_command("the fastest trees, for each batch size", "tune", options, *map(str, prompts))
    publish(report, console, options.json, options.picture, lines=[line])
    return report
