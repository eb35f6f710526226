"""A suite small enough to be run in a test, and results made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clover.compare.accuracy import Accuracy
from clover.compare.measuring import Measured, Measurement
from clover.compare.plan import Method
from clover.compare.results import Provenance, Record, Text
from clover.compare.training import CurvePoint, Trained
from tests.tiny import save_tiny_pair

SUITE = """
name = "tiny"
title = "A tiny one"
target = "{target}"

[text]
files = ["texts.jsonl"]
texts = 12
max_length = 32
prompt_tokens = 4
batch_size = 12

[training]
max_length = 32
batch_tokens = 128
losses = ["paper", "distillation"]
budgets = [{{ steps = 3 }}]

[losses.labels]
label_weight = 1.0

[[systems]]
system = "clover2"
options = {{ num_heads = 3, num_augmenting_layers = 1 }}
trees = ["chain:2", "chain:3"]

[[systems]]
name = "labelled"
system = "clover2"
options = {{ num_heads = 3, num_augmenting_layers = 1 }}
losses = ["labels"]
trees = []
against = "clover2"

[measuring]
batch_sizes = [1, 2]
temperatures = [0.0, 1.0]
rounds = 2
max_new_tokens = 8
prompts = 3

[[tasks]]
name = "lines"
file = "lines.txt"
"""


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, texts, prompts and a suite file."""
    folder = tmp_path_factory.mktemp("compare")
    target, _ = save_tiny_pair(folder)
    rows = [{"text": f"number {i} is followed by number {i + 1} and so on"} for i in range(20)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lines.txt").write_text("one two\nthree four\nfive six\nseven\n")
    (folder / "suite.toml").write_text(SUITE.format(target=target))
    return folder


def plain(speed: float = 100.0) -> Measured:
    steps = {"draft": 0.0, "verify": 9.0, "accept": 0.5, "keep": 0.5}
    return Measured(Method("plain"), 0, (speed, speed), (1.0, 1.0), 1.0, (), steps, 4, 4, True)


def drafted(system: str, tree: str, speedup: float, tau: float, **how: object) -> Measured:
    method = Method(
        system, tree, **{"loss": "paper", "budget": "9 steps", "learning_rate": 1e-3, "seed": 0, **how}
    )
    steps = {"draft": 3.0, "verify": 12.0, "accept": 0.5, "keep": 0.7}
    nodes = int(tree.split(":")[1]) if ":" in tree else 25
    speeds = (90 * speedup, 100 * speedup, 110 * speedup)
    ups = (0.9 * speedup, speedup, 1.1 * speedup)
    return Measured(method, nodes, speeds, ups, tau, (0.8, 0.5, 0.25), steps, 4, 4, True)


def provenance(**values: object) -> Provenance:
    known = {
        "suite": "hand", "suite_hash": "0123456789ab", "title": "By hand", "note": "", "target": "embedded",
        "device": "cpu", "dtype": "float32", "machine": "a machine, 2 threads", "threads": 2,
        "versions": {"clover": "1"}, "revision": None, "command": "clover compare hand",
        "date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Provenance(**(known | values))  # type: ignore[arg-type]


def record(key: str, kind: str, result: object, **values: object) -> Record:
    return Record(key, kind, f"cell {key}", 1.5, {"key": key}, result, provenance(**values))  # type: ignore[arg-type]


def trained(system: str, rate: float, loss: str = "paper", against: str | None = None) -> Trained:
    method = Method(system, None, loss, "9 steps", rate, 0)
    curve = tuple(CurvePoint(100 * i, 2.0 * i, 5.0 / i, (0.1 * i, 0.05 * i)) for i in range(1, 5))
    return Trained(method, "clover2", 1234, 9, 400, 8.0, 1.25, (0.4, 0.2), curve, {}, {}, against)


def heads(system: str, rate: float, top5: tuple[float, float], task: str = "code") -> Accuracy:
    method = Method(system, None, "paper", "9 steps", rate, 0)
    forced = tuple((x / 2, x / 1.5, x / 1.2, x, min(1.0, 1.1 * x)) for x in top5)
    return Accuracy(method, task, (1, 2, 3, 5, 10), (100, 50), forced, forced)


@pytest.fixture
def hand_made() -> list[Record]:
    """Two systems, two tasks, three trees, two batch sizes and temperatures, two rates, an ablation."""
    records = [record("t0", "text", Text(10, 1000, 900, "ff"))]
    for name, rate, against in (("clover2", 1e-3, None), ("clover2", 3e-3, None), ("half", 1e-3, "clover2")):
        records.append(record(f"{name}{rate}", "training", trained(name, rate, against=against)))
        values = (0.5, 0.3) if name == "half" else (0.8, 0.6)
        records.append(record(f"a{name}{rate}", "accuracy", heads(name, rate, values)))
    for task in ("code", "prose"):
        for size in (1, 4):
            for temperature in (0.0, 1.0):
                methods = (
                    plain(),
                    drafted("clover2", "budget:2", 1.2, 2.0),
                    drafted("clover2", "budget:4", 1.5, 2.5),
                    drafted("clover2", "budget:8", 1.4, 2.75),
                    drafted("clover2", "budget:4", 1.3, 2.2, learning_rate=3e-3),
                    drafted("half", "budget:4", 1.1, 1.9),
                    Measured(
                        Method("lookup", "drawn:chain:2"), 2, (50.0,) * 3, (0.5,) * 3, 1.1, (0.1,),
                        {"draft": 1.0, "verify": 9.0, "accept": 1.0, "keep": 1.0}, 2, 4, False,
                    ),
                )  # fmt: skip
                result = Measurement(task, size, temperature, 4, methods)
                records.append(record(f"m{task}{size}{temperature}", "measuring", result))
    return records
