"""An evaluation from its options to the report."""

from collections.abc import Sequence
from itertools import product

from rich.console import Console

from clover import assets
from clover.data.tasks import Chosen, Task, choose_fitting, read_tasks
from clover.drafts import load_usable
from clover.engine import Engine
from clover.errors import UserError
from clover.measure.evaluate.acceptance import Setting, continue_prompts
from clover.measure.evaluate.accuracy import as_sample, measure_heads, text_batches
from clover.measure.evaluate.report import make_tables
from clover.measure.options import EvaluateOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.words import draft_kind
from clover.options import command_line
from clover.target import TargetModel
from clover.tree import parse_tree

_OWN_TREE = "own tree"
DEVELOPMENT = "development"  # the group of the embedded prompts to develop with
_FEWEST_NEW_TOKENS = 2


def run_evaluate(
    options: EvaluateOptions, console: Console | None = None, errors: Console | None = None
) -> Report:
    """Measure, print the tables, and write the JSON file; UserError if an option, a file or a model cannot be used."""
    if options.max_new_tokens < _FEWEST_NEW_TOKENS:
        raise UserError(f"max_new_tokens is {options.max_new_tokens}; heads are measured on 2 tokens or more")
    check_outputs(json=options.json)
    for tree in options.trees:
        parse_tree(tree)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        report = _evaluate(options, progress)
    publish(report, console, json=options.json)
    return report


def _evaluate(options: EvaluateOptions, progress: Progress) -> Report:
    target = TargetModel.load(options.target or assets.TARGET, **options.loading)
    place = assets.draft_place(options.draft, None if options.target is None else target)
    draft = load_usable(place, target)
    engines = {tree: Engine(target, draft, parse_tree(tree)) for tree in options.trees}
    engines = engines or {_OWN_TREE: Engine(target, draft)}
    length = options.max_new_tokens
    prompts, left_out = choose_prompts(options.files, target, length, options.max_prompts)
    wanted = list(product(engines, options.temperatures))
    greedy = (wanted[0][0], 0.0)  # its texts are what the heads are measured on
    runs = dict.fromkeys([*wanted, greedy])
    progress.begin(len(runs) + 1)
    written = {}
    for tree, temperature in runs:
        share = progress.part(1, f"{tree}, temperature {temperature:g}")
        written[tree, temperature] = continue_prompts(
            engines[tree], prompts, length, temperature, options.batch_size, options.seed, share
        )
    texts = [as_sample(one.prompt.tokens, one.tokens) for one in written[greedy]]
    share = progress.part(1, "accuracy of the heads")
    heads = measure_heads(target, draft.for_inference(), text_batches(target, texts), share)
    settings = [Setting.of(tree, engines[tree], t, written[tree, t], target.tokenizer) for tree, t in wanted]
    more = f" ({left_out} more do not fit into the context)" if left_out else ""
    system = str(draft.config.model_type)
    facts = {
        "target": options.target or "embedded",
        "draft": assets.draft_name(options.draft, place),
        "system": draft_kind(draft.config),
        "prompts": f"{len(prompts)} prompts, {length} new tokens each{more}",
        "heads measured on": "what the target writes at temperature 0",
    }
    data = {"heads": heads.to_dict(), "settings": [setting.to_dict() for setting in settings]}
    return Report(
        "How good the draft is",
        Provenance.here(command_line("evaluate", options, files="files"), target.device, target.dtype),
        list(facts.items()),
        make_tables(heads, settings),
        data=facts | {"system": system} | data,
        notes=[("±", "one standard error over prompts or texts")],
    )


def choose_prompts(
    files: Sequence[str],
    target: TargetModel,
    max_new_tokens: int,
    limit: int,
    embedded: str = DEVELOPMENT,
    spare: int = 0,
) -> Chosen:
    """The prompts of files; of SmolLM2 questions of MT-bench; or the embedded ones, which nothing is judged by.

    At most `limit`, which leave room for the new tokens and for `spare` more; `embedded` is another group of the
    embedded prompts. UserError if the target has no tokenizer, a file cannot be used, or no prompt fits.
    """
    tokenizer, tasks = target.require_tokenizer(), _tasks(files, target, embedded)
    return choose_fitting(tasks, tokenizer, target.longest_run - spare, max_new_tokens, limit)


def _tasks(files: Sequence[str], target: TargetModel, embedded: str) -> list[Task]:
    if not files and assets.is_smollm2(target):
        files = [str(assets.MT_BENCH)]
    if files:
        return read_tasks(files)
    return [task for task in read_tasks([assets.HELD_OUT_PROMPTS]) if task.group == embedded]
