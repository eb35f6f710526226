"""How far forecasts of `clover cost` can be trusted: train at growing lengths, fit the constants, test the intervals.

    python benchmarks/forecast.py curve --target DIR --data FILE... --name NAME --json curves.jsonl
    python benchmarks/forecast.py fit curves.jsonl --output src/clover/cost/calibration.json
    python benchmarks/forecast.py test held_out.jsonl

`curve` makes complete trainings of `--first-steps` · 2^k steps, each from the start with its own schedule of the
learning rate, and notes the accuracy of the heads on held-out texts and τ on their openings; the second draft is timed
against plain decoding. `fit` finds the constants. `test` forecasts each curve's last training from its first two, which
must not be among those that were fitted, and compares. Cost per step does not depend on training, so what came out is
the measured speed-up of the second draft times the measured growth of τ: a speed-up measured again at another time
would mostly tell how busy the machine was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch

from clover.cost.calibrate import Curve, CurvePoint, calibration_record, find_cases, fit, load_calibration
from clover.cost.extrapolate import doublings
from clover.cost.forecast import forecast_speedup
from clover.cost.measuring import MeasuringOptions, PairTimes, measure_pair
from clover.cost.probe import HELD_OUT_SHARE, held_out_prompts, measured_point, train_draft
from clover.data import Sample, read_samples
from clover.data.tasks import TaskPrompt
from clover.drafts import load_draft
from clover.engine import Engine
from clover.evaluate.acceptance import continue_prompts
from clover.files import write_json
from clover.metrics import Acceptance
from clover.provenance import versions
from clover.target import TargetModel
from clover.train import TrainConfig


def main() -> None:
    options = _options()
    {"curve": _curve, "fit": _fit, "test": _test}[options.action](options)


def _curve(options: argparse.Namespace) -> None:
    started = time.monotonic()
    target = TargetModel.load(options.target, dtype="float32", device="cpu")
    samples = read_samples(options.data, target.tokenizer, target.eos_token_ids).samples[: options.texts]
    room = target.context_length - options.max_new_tokens
    prompts = held_out_prompts(samples, options.prompts, room)
    points, times = [], None
    for doubled in options.doublings:
        with tempfile.TemporaryDirectory() as work:
            config = _config(options, f"{work}/draft", options.first_steps * 2**doubled)
            points.append(_point(target, samples, config, prompts, options))
            if doubled == 1:
                draft = load_draft(config.output, target)
                measuring = MeasuringOptions(max_new_tokens=options.max_new_tokens, batches=options.prompts)
                times = measure_pair(target, draft, prompts, measuring)
    assert times is not None, "the second training, --doublings 1, is missing"
    print(" ".join(f"{p['tokens']}: τ {p['tau']:.3f}" for p in points), file=sys.stderr)
    row = {"name": options.name, "points": points, "times": asdict(times), **_provenance(started)}
    with options.json.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _point(
    target: TargetModel,
    samples: list[Sample],
    config: TrainConfig,
    prompts: list[tuple[int, ...]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    found = measured_point(train_draft(target, samples, config))
    engine = Engine(target, load_draft(config.output, target))
    tasks = [TaskPrompt("", prompt, "") for prompt in prompts]
    texts = continue_prompts(engine, tasks, options.max_new_tokens, 0.0, options.prompts)
    acceptance = reduce(add, (text.acceptance for text in texts), Acceptance())
    return {**asdict(found), "tau": acceptance.tau}


def _config(options: argparse.Namespace, output: str, steps: int) -> TrainConfig:
    return TrainConfig(
        output=output,
        system=options.system,
        max_steps=steps,
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
        lr=options.lr,
        seed=options.seed,
        validation_share=HELD_OUT_SHARE,
        save_every_minutes=60,
    )


def _fit(options: argparse.Namespace) -> None:
    curves = [curve for curve, _ in _read(options.curves)]
    known = fit(curves)
    print(known)
    for case in find_cases(curves):
        name, span = curves[case.curve].name, f"{case.second.tokens:,} → {case.later.tokens:,}"
        print(f"{name}: {span} tokens: error of log τ per doubling {case.error(known):+.4f}")
    if options.output:
        names = [curve.name for curve in curves]
        provenance = {**_provenance(time.monotonic()), "curves": names}
        write_json(options.output, calibration_record(known, provenance))


def _test(options: argparse.Namespace) -> None:
    known = load_calibration()
    print("| combination | tokens | doublings | speed-up of the probe | forecast | came out | inside |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for curve, times in _read(options.curves):
        first, second, last = curve.points[0], curve.points[1], curve.points[-1]
        told = forecast_speedup(first.point, second.point, last.tokens, times, known)
        came = times.speedup.value * last.tau / second.tau
        tokens = f"{second.tokens:,} → {last.tokens:,}"
        distance = doublings(second.tokens, last.tokens)
        inside = "yes" if came in told.interval else "no"
        forecast = f"{told.interval.value:.2f} ({told.interval.low:.2f}–{told.interval.high:.2f})"
        figures = (
            curve.name,
            tokens,
            f"{distance:.1f}",
            f"{times.speedup.value:.2f}",
            forecast,
            f"{came:.2f}",
            inside,
        )
        print("|", " | ".join(figures), "|")


def _read(paths: list[Path]) -> list[tuple[Curve, PairTimes]]:
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [(_parse_curve(row), _parse_times(row["times"])) for row in rows]


def _parse_times(found: dict[str, Any]) -> PairTimes:
    return PairTimes(tuple(found["plain"]), tuple(found["drafted"]), tuple(found["taus"]), found["depth"])


def _parse_curve(row: dict[str, Any]) -> Curve:
    points = (CurvePoint(p["tokens"], tuple(p["accuracy"]), p["tau"]) for p in row["points"])
    return Curve(row["name"], row["times"]["depth"], tuple(points))


def _provenance(started: float) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, float32",
        "versions": versions(),
        "seconds": round(time.monotonic() - started),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    curve = actions.add_parser("curve")
    curve.add_argument("--target", required=True)
    curve.add_argument("--data", nargs="+", required=True)
    curve.add_argument("--name", required=True)
    curve.add_argument("--json", type=Path, required=True)
    curve.add_argument("--first-steps", type=int, default=30)
    curve.add_argument("--doublings", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    curve.add_argument("--batch-tokens", type=int, default=512)
    curve.add_argument("--max-length", type=int, default=128)
    curve.add_argument("--lr", type=float, default=4e-3)
    curve.add_argument("--system", default="clover2")
    curve.add_argument("--seed", type=int, default=0)
    curve.add_argument("--texts", type=int, default=2000)
    curve.add_argument("--prompts", type=int, default=16)
    curve.add_argument("--max-new-tokens", type=int, default=40)
    fitting = actions.add_parser("fit")
    fitting.add_argument("curves", type=Path, nargs="+")
    fitting.add_argument("--output", type=Path)
    actions.add_parser("test").add_argument("curves", type=Path, nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    main()
