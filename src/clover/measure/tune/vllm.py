"""How many tokens to draft on vLLM: from the acceptance measured here and the time of vLLM's own steps.

A request gets τ tokens per step, whatever the batch; a step of B requests takes as long as `clover.integrations.vllm`'s
`costs` measured there. So the best number of drafted tokens K has the greatest B · τ(K) / seconds(B, K).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from clover import assets
from clover.errors import UserError
from clover.files import check_output_file, write_json
from clover.integrations.export import check_target, export
from clover.integrations.vllm.costs import measure_costs, numbers_to_time
from clover.measure.options import TuneOptions
from clover.measure.report.output import Report, check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.report.table import Table
from clover.measure.report.words import mode, times
from clover.measure.tune.ranks import RankPath
from clover.measure.tune.run import Tuner
from clover.measure.tune.shapes import exact_tau
from clover.validation import checked, read_model, validated

_SHOWN = 3  # numbers per batch size in the table, besides none
_ELSEWHERE = "run python -m clover.integrations.vllm.costs, and give its file with --costs"
_COLUMNS = ("batch", "draft\ntokens", "τ", "step,\nms", "tokens/s", "speed-up")


@checked
class StepCost:
    """Seconds of a step of vLLM with so many requests, each with so many drafted tokens."""

    batch_size: Annotated[int, Field(ge=1)]
    drafted: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(gt=0)]


@checked
class StepCosts:
    """What `costs` wrote: vLLM's version and its steps, those without drafted tokens included."""

    vllm: str
    steps: Annotated[tuple[StepCost, ...], Field(min_length=1)]

    @property
    def by_size(self) -> dict[int, dict[int, float]]:
        """Seconds by batch size and number of drafted tokens, both rising.

        UserError for a batch size that was measured with fewer than two numbers, or not without drafted tokens.
        """
        sizes: dict[int, dict[int, float]] = {}
        for cost in sorted(self.steps, key=lambda one: (one.batch_size, one.drafted)):
            sizes.setdefault(cost.batch_size, {})[cost.drafted] = cost.seconds
        for size, measured in sizes.items():
            if 0 not in measured or len(measured) < 2:
                raise UserError(f"the costs of batch size {size} must hold 0 drafted tokens and one more")
        return sizes


@dataclass(frozen=True)
class DraftCount:
    """A number of drafted tokens at a batch size, and what it is worth; `speedup` is against drafting none."""

    batch_size: int
    drafted: int
    tau: float
    seconds: float
    tokens_per_second: float
    speedup: float


def draft_counts(
    costs: Mapping[int, Mapping[int, float]], taus: Mapping[int, float]
) -> list[list[DraftCount]]:
    """Per batch size every number of drafted tokens in `taus` up to the most measured, the fastest first.

    `costs` is by batch size and number of drafted tokens, see `StepCosts`. Between two numbers that were measured the
    time of a step is a straight line.
    """
    found = []
    for size, measured in costs.items():
        some = list[DraftCount]()
        for count, tau in taus.items():
            if count <= max(measured):
                seconds = _between(measured, count)
                speedup = tau * measured[0] / seconds
                some.append(DraftCount(size, count, tau, seconds, size * tau / seconds, speedup))
        found.append(sorted(some, key=lambda one: -one.tokens_per_second))
    return found


def _between(measured: Mapping[int, float], count: int) -> float:
    low = max(number for number in measured if number <= count)
    high = min(number for number in measured if number >= count)
    share = (count - low) / (high - low) if high > low else 0.0
    return (1 - share) * measured[low] + share * measured[high]


def chain_taus(paths: Sequence[Sequence[RankPath]], depth: int) -> dict[int, float]:
    """τ of chains of up to `depth` tokens on texts, 1 for none."""
    chain = [(0,) * length for length in range(1, depth + 1)]
    return {length: exact_tau(paths, frozenset(chain[:length])) for length in range(depth + 1)}


def speculative_config(best: Sequence[DraftCount], draft: str) -> dict[str, Any]:
    """What `vllm serve --speculative-config` takes; of several batch sizes with the schedule between them.

    Each size stands for those from itself to the next one. Empty where drafting pays at none.
    """
    most = max(one.drafted for one in best)
    if most == 0:
        return {}
    config: dict[str, Any] = {"method": "eagle", "model": draft, "num_speculative_tokens": most}
    if len({one.drafted for one in best}) > 1:
        starts = [1, *(one.batch_size for one in best[1:])]
        ends = [*(start - 1 for start in starts[1:]), max(best[-1].batch_size, 1024)]
        drafted = [one.drafted for one in best]
        config["num_speculative_tokens_per_batch_size"] = [
            list(one) for one in zip(starts, ends, drafted, strict=True)
        ]
    return config


def run_tune_vllm(
    options: TuneOptions, console: Console | None = None, errors: Console | None = None
) -> list[DraftCount]:
    """Measure acceptance, and vLLM's steps where no file has them; print the table and the configuration for vLLM.

    Returns the best number of drafted tokens per batch size. UserError if an option, a file or a model cannot be
    used, or vLLM is neither installed nor measured.
    """
    check_outputs(options.json)
    if options.output is not None:
        check_output_file(options.output)
    _check(options)
    costs = read_model(options.costs, StepCosts) if options.costs else None
    sizes = costs.by_size if costs else {}
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        tuner = Tuner(options)
        tuner.draft.copy_nothing()  # vLLM has no place for it
        if costs is None:
            progress.say("timing vLLM's steps")
            costs = _measured(tuner)
            sizes = costs.by_size
        depth = min(tuner.draft.max_depth, max(max(measured) for measured in sizes.values()))
        counts = draft_counts(sizes, chain_taus(tuner.rank_paths(progress, depth), depth))
    best = [some[0] for some in counts]
    config = speculative_config(best, "EXPORTED_DRAFT")
    if options.output is not None:
        write_json(options.output, config)  # before anything is printed, as in `publish`
    told = (
        f"--speculative-config '{json.dumps(config)}'" if config else "Serve without a draft: none pays here."
    )
    publish(_report(tuner, costs, counts), console, options.json, lines=[told])
    return best


def _check(options: TuneOptions) -> None:
    """Raise UserError, before models are loaded, for what would be ignored or fail later."""
    if options.costs is not None:
        if options.batch_sizes != TuneOptions.batch_sizes:
            raise UserError("the batch sizes are those of the file of --costs; leave --batch-size out")
        return
    if find_spec("vllm") is None:
        raise UserError(f"vLLM is not installed here; where it is, {_ELSEWHERE}")
    if options.device is not None:
        raise UserError(f"vLLM runs on the device it was built for; leave --device out, or {_ELSEWHERE}")
    if options.target is not None:
        check_target(options.target)


def _measured(tuner: Tuner) -> StepCosts:
    options = tuner.options
    with TemporaryDirectory() as folder:
        draft = Path(folder) / "draft"
        export("vllm", tuner.place, draft, drafted=1)
        found = measure_costs(
            str(options.target or assets.TARGET),
            str(draft),
            options.batch_sizes,
            numbers_to_time(tuner.draft.max_depth),
            {
                "dtype": "auto" if options.dtype is None else tuner.target.dtype_name,
                "trust_remote_code": options.trust_remote_code,
            },
        )
    return validated(StepCosts, found, "vLLM's steps")


def _report(tuner: Tuner, costs: StepCosts, sizes: Sequence[Sequence[DraftCount]]) -> Report:
    options, rows, sections = tuner.options, list[tuple[str, ...]](), list[int]()
    for some in sizes:
        sections.append(len(rows))
        shown = [one for place, one in enumerate(some) if place < _SHOWN or not one.drafted]
        rows += [_row(one, first=one is some[0]) for one in shown]
    title = f"vLLM: draft {', '.join(f'{some[0].drafted} at batch {some[0].batch_size}' for some in sizes)}"
    note = (
        "τ: tokens per step and request, counted here; step: of vLLM, between measured ones a straight line"
    )
    table = Table(
        "The best numbers of drafted tokens", _COLUMNS, rows, note, strong=sections, sections=sections
    )
    texts = f"{len(tuner.requests)} prompts, {options.max_new_tokens} new tokens each at most"
    facts = [
        ("target", options.target or "embedded"),
        ("draft", assets.draft_name(options.draft, tuner.place)),
        ("acceptance on", f"{texts}, {mode(options.temperature)}"),
        ("vLLM", costs.vllm),
    ]
    data = {"vllm": costs.vllm, "choices": [asdict(one) for some in sizes for one in some]}
    return Report(title, tuner.origin, facts, [table], data=data)


def _row(one: DraftCount, first: bool) -> tuple[str, ...]:
    return (
        str(one.batch_size) if first else "",
        str(one.drafted),
        f"{one.tau:.2f}",
        f"{1e3 * one.seconds:.1f}",
        f"{one.tokens_per_second:.1f}",
        times(one.speedup),
    )
