"""`clover tune --for vllm`: the best number of draft tokens on vLLM, from acceptance here and the time of vLLM's steps.

A request gets τ tokens per step, at any batch size. `clover.integrations.vllm.costs` has measured the time of a step
with B requests there. So the best number of draft tokens K has the greatest B · τ(K) / seconds(B, K).
"""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from clover import assets
from clover.drafting.tuning import VerifyCost, seconds_at
from clover.errors import UserError
from clover.files import check_output_file, write_json
from clover.integrations.export import check_no_gguf, export
from clover.integrations.vllm.costs import measure_costs, numbers_to_time
from clover.measure.budget import Budget
from clover.measure.options import TuneOptions
from clover.measure.ranks import RankPath
from clover.measure.report.output import check_outputs, publish
from clover.measure.report.progress import Progress
from clover.measure.session import PLAIN, Session
from clover.measure.steps import StepCost
from clover.measure.trees import exact_tau
from clover.measure.tune import (
    TimedTree,
    check_no_package,
    fastest_first,
    load_session,
    make_tune_report,
    rank_paths,
)
from clover.validation import checked, read_model, validated

_ELSEWHERE = "run python -m clover.integrations.vllm.costs, and give its file with --costs"


@checked
class VLLMStep:
    """The seconds of a vLLM step with `batch_size` requests, each with `drafted` tokens."""

    batch_size: Annotated[int, Field(ge=1)]
    drafted: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(gt=0)]


@checked
class StepCosts:
    """The contents of the file that `costs` writes: vLLM's version and its steps, with and without drafted tokens."""

    vllm: str
    steps: Annotated[tuple[VLLMStep, ...], Field(min_length=1)]

    @property
    def by_size(self) -> dict[int, list[VerifyCost]]:
        """Return the steps by batch size, both in rising order; nodes are the drafted tokens and the root.

        UserError for a batch size without at least two numbers of drafted tokens, 0 among them.
        """
        sizes: dict[int, dict[int, VerifyCost]] = {}
        for cost in sorted(self.steps, key=lambda one: (one.batch_size, one.drafted)):
            one = VerifyCost(cost.batch_size, cost.drafted + 1, cost.seconds)
            sizes.setdefault(cost.batch_size, {})[one.nodes] = one
        for size, measured in sizes.items():
            if 1 not in measured or len(measured) < 2:
                raise UserError(f"the costs of batch size {size} must hold 0 drafted tokens and one more")
        return {size: [*measured.values()] for size, measured in sizes.items()}


def draft_counts(costs: StepCosts, taus: Mapping[int, float]) -> list[list[TimedTree]]:
    """Return chains of each number of tokens in `taus` up to the largest measured, per batch size, fastest first.

    The time of a step is interpolated linearly between measured numbers.
    """
    found = []
    for size, measured in costs.by_size.items():
        seconds = {n: seconds_at(measured, size, n + 1) for n in taus if n < measured[-1].nodes}
        steps = {n: StepCost(size, f"chain:{n}" if n else PLAIN, n + 1, s) for n, s in seconds.items()}
        found.append(fastest_first(TimedTree(step, taus[n], seconds[0]) for n, step in steps.items()))
    return found


def chain_taus(paths: Sequence[Sequence[RankPath]], depth: int) -> dict[int, float]:
    """Return τ of chains of up to `depth` tokens on texts; τ is 1 for 0 tokens."""
    chain = [(0,) * length for length in range(1, depth + 1)]
    return {length: exact_tau(paths, frozenset(chain[:length])) for length in range(depth + 1)}


def speculative_config(best: Sequence[StepCost], draft: str) -> dict[str, Any]:
    """Return the value of `vllm serve --speculative-config`, with a schedule if the best number depends on batch size.

    `best` has the best step of each batch size; a size covers all sizes up to the next one. The result is empty if
    drafting pays at no size.
    """
    drafted = [one.nodes - 1 for one in best]
    if not any(drafted):
        return {}
    config: dict[str, Any] = {"method": "eagle", "model": draft, "num_speculative_tokens": max(drafted)}
    if len(set(drafted)) > 1:
        starts = [1, *(one.batch_size for one in best[1:])]
        ends = [*(start - 1 for start in starts[1:]), max(best[-1].batch_size, 1024)]
        config["num_speculative_tokens_per_batch_size"] = [
            list(one) for one in zip(starts, ends, drafted, strict=True)
        ]
    return config


def run_tune_vllm(
    options: TuneOptions, console: Console | None = None, errors: Console | None = None
) -> list[StepCost]:
    """Measure acceptance, and vLLM's steps unless a file has them; print the table and the configuration for vLLM.

    Returns the best step of each batch size. UserError if an option, a file or a model cannot be used, or if vLLM is
    not installed and --costs is not given.
    """
    check_outputs(options.json)
    if options.output is not None:
        check_no_package(options.output)
        check_output_file(options.output)
    _check(options)
    costs = read_model(options.costs, StepCosts) if options.costs else None
    if costs is not None:
        _ = costs.by_size  # raises an error, before the models are loaded, if it is incomplete
    budget = Budget(options.max_minutes)
    with Progress(errors) as progress:
        progress.say("loading target and draft")
        session = load_session(options)
        draft = session.draft.model
        draft.copy_nothing()  # because vLLM cannot copy
        if costs is None:
            progress.say("timing vLLM's steps")
            costs = _measured(session, options)
        depth = min(draft.max_depth, max(one.drafted for one in costs.steps))
        texts = rank_paths(session, options, progress, budget, depth)
        counts = draft_counts(costs, chain_taus(texts, depth))
    best = [some[0].step for some in counts]
    config = speculative_config(best, "EXPORTED_DRAFT")
    if options.output is not None:
        write_json(options.output, config)  # before anything is printed, as in `publish`
    line = (
        f"--speculative-config '{json.dumps(config)}'" if config else "Serve without a draft: none pays here."
    )
    title = f"vLLM: draft {', '.join(f'{one.nodes - 1} at batch {one.batch_size}' for one in best)}"
    steps = "of vLLM, between measured ones a straight line"
    publish(
        make_tune_report(session, options, title, texts, counts, steps, vLLM=costs.vllm),
        console,
        options.json,
        lines=[line],
    )
    return best


def _check(options: TuneOptions) -> None:
    """Raise UserError, before models are loaded, for options that would be ignored or fail later."""
    if options.costs is not None:
        if options.batch_sizes != TuneOptions.batch_sizes:
            raise UserError("the batch sizes are those of the file of --costs; leave --batch-size out")
        return
    if find_spec("vllm") is None:
        raise UserError(f"vLLM is not installed here; where it is, {_ELSEWHERE}")
    if options.device is not None:
        raise UserError(f"vLLM runs on the device it was built for; leave --device out, or {_ELSEWHERE}")
    if options.target is not None:
        check_no_gguf(options.target)


def _measured(session: Session, options: TuneOptions) -> StepCosts:
    """Export the draft, and time the steps of vLLM with it."""
    settings = {
        "dtype": "auto" if options.dtype is None else session.target.dtype_name,
        "trust_remote_code": options.trust_remote_code,
    }
    with TemporaryDirectory() as folder:
        draft = Path(folder) / "draft"
        export("vllm", session.draft.place, draft, drafted=1)
        numbers = numbers_to_time(session.draft.model.max_depth)
        target = str(options.target or assets.TARGET)
        found = measure_costs(target, str(draft), options.batch_sizes, numbers, settings)
    return validated(StepCosts, found, "vLLM's steps")
