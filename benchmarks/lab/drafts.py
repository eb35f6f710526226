"""Stages `text`, `drafts` and `compare`: suites of `experiments.compare` on the trained target, cut into three."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.lab.workplace import Workplace
from clover.errors import UserError
from clover.measure.acceptance import tau_pairs
from clover.measure.report.statistics import ratio
from experiments.compare.options import CompareOptions
from experiments.compare.results import Measurement, read_records
from experiments.compare.run import Comparison, run_compare
from experiments.compare.suite import read_suite

_SUITE = """
name = "{name}"
title = "{title}"
target = "{target}"

[text]
files = ["openings.jsonl"]
texts = {texts}
max_length = {text_tokens}
prompt_tokens = {prompt_tokens}
batch_size = 64

[training]
batch_tokens = {draft_tokens}
losses = ["distillation"]
steps = [{draft_steps}]

[measuring]
trees = [{trees}]
batch_sizes = {batch_sizes}
temperatures = {temperatures}
rounds = {rounds}
max_new_tokens = {new_tokens}
prompts = {prompts}
accuracy = false

{systems}
[[tasks]]
name = "code"
file = "prompts.json"
"""


def write_training_text(place: Workplace) -> None:
    """Let the target continue the openings; goes on from what is written."""
    if place.facts("text") is not None:
        return
    options = _options(place, "drafts", trained_only=True)
    samples = Comparison(options, read_suite(options), Console(stderr=True)).training_text
    learnt = sum(int(sample.loss_mask.sum()) for sample in samples)
    place.finish("text", {"texts": len(samples), "tokens_to_learn": learnt})


def train_drafts(place: Workplace) -> None:
    """Train every system on the same tokens; goes on from the last checkpoint."""
    if place.facts("drafts") is None:
        _run(place, "drafts", trained_only=True)
        place.finish("drafts", {"systems": place.sizes.systems, "steps": place.sizes.draft_steps})


def compare_drafts(place: Workplace) -> None:
    """Measure every system at every batch size; what is measured is not measured again."""
    if place.facts("compare") is None:
        _run(place, "compare", trained_only=False)
        place.finish("compare", {"acceptance": acceptance(place)})


def acceptance(place: Workplace) -> dict[str, float]:
    """τ of each measured system and tree at batch 1, temperature 0; empty before the comparison."""
    file = _output(place, "compare") / "results.jsonl"
    found: dict[str, float] = {}
    for record in read_records(file) if file.exists() else []:
        one = record.result
        if isinstance(one, Measurement) and (one.batch_size, one.temperature) == (1, 0.0):
            found |= {
                f"{m.method.system} {m.method.tree}": ratio(tau_pairs(m.acceptances)).value
                for m in one.methods
                if m.method.tree
            }
    return found


def _run(place: Workplace, name: str, trained_only: bool) -> None:
    run_compare(_options(place, name, trained_only), Console(stderr=True))


def _options(place: Workplace, name: str, trained_only: bool) -> CompareOptions:
    return CompareOptions(
        suite=str(_suite(place, name, trained_only)),
        output=_output(place, name),
        work=place.folder / "compare.work",
        device=str(place.device),
        dtype=place.dtype_name,
    )


def _suite(place: Workplace, name: str, trained_only: bool) -> Path:
    """Write the suite; without trees its systems are trained but do not decode."""
    if not (place.folder / "target").is_dir():
        raise UserError("there is no target yet; run the stage target first")
    sizes, path = place.sizes, place.folder / f"{name}.toml"
    systems = sizes.systems
    tables = [f'[[systems]]\nsystem = "{s}"\n' + ("trees = []\n" if trained_only else "") for s in systems]
    text = _SUITE.format(
        name=f"gpu-{name}",
        title="Draft systems after equal tokens",
        target=(place.folder / "target").as_posix(),
        texts=sizes.texts,
        text_tokens=sizes.text_tokens,
        prompt_tokens=sizes.prompt_tokens,
        draft_tokens=sizes.draft_tokens,
        draft_steps=sizes.draft_steps,
        trees=", ".join(f'"{tree}"' for tree in sizes.trees),
        batch_sizes=_listed(sizes.batch_sizes),
        temperatures=_listed(sizes.temperatures),
        rounds=sizes.rounds,
        new_tokens=sizes.new_tokens,
        prompts=sizes.prompts,
        systems="\n".join(tables),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _listed(values: Sequence[float]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _output(place: Workplace, name: str) -> Path:
    return place.folder / "results" / name
