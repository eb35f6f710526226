"""How many more tokens a batch-wide budget accepts than a fixed number of nodes per row, at equal budget.

    python benchmarks/shared_budget.py [--target DIR --draft DIR] [--nodes 2 3 4] [--json FILE]

For each budget of n nodes per row and each batch size, the same prompts are decoded with shared:n, with and without a
calibration, and with fixed numbers per row: budget:n, eagle2:n, and the static tree of the n nodes that are most often
accepted. Static trees and calibration come from half of the development prompts; the other half and the held-out
prompts are decoded. Printed are accepted draft tokens per row and step, without the bonus token, and how far shared is
above the best fixed one. Full batches only: what is left when rows have finished is not counted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

from clover import assets
from clover.api import Clover, load
from clover.drafting import Calibration, Drafter, FixedPolicy, StepOutcome, make_drafter
from clover.engine import Engine, Request
from clover.sampling import SamplingParams
from clover.tree import BudgetTree, RerankTree, SharedTree, TreeShape
from clover.tune.ranks import rank_texts
from clover.tune.shapes import count_starts, most_frequent
from clover.tune.texts import write_texts

_TOGETHER = 8  # prompts that texts are written from at once


@dataclass(frozen=True)
class Row:
    """One comparison; accepted tokens per row and step."""

    temperature: float
    batch_size: int
    nodes: int
    fixed: dict[str, float]
    shared: float
    calibrated: float

    @property
    def gain(self) -> float:
        """Of the calibrated one over the best fixed one."""
        return self.calibrated / max(self.fixed.values()) - 1


class CountingPolicy(FixedPolicy):
    """Counts what full batches accept."""

    def __init__(self, drafter: Drafter, batch_size: int):
        super().__init__(drafter)
        self.batch_size, self.accepted, self.rows = batch_size, 0, 0

    def record(self, outcome: StepOutcome) -> None:
        if outcome.batch_size == self.batch_size:
            self.accepted += sum(outcome.emitted) - len(outcome.emitted)
            self.rows += len(outcome.emitted)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    model = load(options.target, options.draft, method="draft", dtype=options.dtype)
    draft = model.engine.draft
    assert draft is not None
    prompts = json.loads(options.prompts.read_text())
    fitted_on, judged_on = prompts["development"][::2], prompts["development"][1::2] + prompts["prompts"]
    rows: list[Row] = []
    for temperature in options.temperatures:
        fitting = _requests(model, fitted_on, temperature, options)
        judging = _requests(model, judged_on, temperature, options)
        texts = write_texts(model.engine, fitting, _TOGETHER)
        ranking = rank_texts(model.target, draft, texts, SharedTree().depth, _TOGETHER)
        paths = most_frequent(count_starts(chain.from_iterable(ranking.paths)))
        calibration = Calibration.fit(ranking.probabilities, ranking.depths, ranking.accepted)
        for batch_size in options.batch_sizes:
            for nodes in options.nodes:
                static = TreeShape.from_paths(paths[:nodes])
                rows.append(_compare(model, judging, temperature, batch_size, nodes, static, calibration))
                print(_line(rows[-1]), flush=True)
    if options.json:
        found = [{**asdict(row), "gain": row.gain} for row in rows]
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _compare(
    model: Clover,
    requests: list[Request],
    temperature: float,
    batch_size: int,
    nodes: int,
    static: TreeShape,
    calibration: Calibration,
) -> Row:
    draft = model.engine.draft
    assert draft is not None
    fixed = {f"budget:{nodes}": BudgetTree(nodes), f"eagle2:{nodes}": RerankTree(nodes), "static": static}
    accepted = {
        name: _accepted(model, make_drafter(draft, tree), requests, batch_size)
        for name, tree in fixed.items()
    }
    shared, calibrated = (
        _accepted(model, make_drafter(draft, SharedTree(nodes), one), requests, batch_size)
        for one in (None, calibration)
    )
    return Row(temperature, batch_size, nodes, accepted, shared, calibrated)


def _accepted(model: Clover, drafter: Drafter, requests: list[Request], batch_size: int) -> float:
    """Accepted tokens per row and step; finished rows are replaced as long as there are prompts."""
    policy = CountingPolicy(drafter, batch_size)
    engine = Engine(model.target, model.engine.draft, policy=policy)
    for _ in engine.run(requests, max_rows=batch_size):
        pass
    return policy.accepted / policy.rows


def _requests(
    model: Clover, prompts: list[str], temperature: float, options: argparse.Namespace
) -> list[Request]:
    params = [SamplingParams(temperature=temperature, seed=100 + i) for i in range(len(prompts))]
    return [
        Request(tuple(model.encode(prompt)), options.max_new_tokens, own, eos=())
        for prompt, own in zip(prompts, params, strict=True)
    ]


def _line(row: Row) -> str:
    fixed = "  ".join(f"{name} {value:.3f}" for name, value in row.fixed.items())
    return (
        f"T {row.temperature:g}  batch {row.batch_size:2d}  {fixed}  shared:{row.nodes} {row.shared:.3f}, "
        f"calibrated {row.calibrated:.3f}: {row.gain:+.1%}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=Path, default=assets.HELD_OUT_PROMPTS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
