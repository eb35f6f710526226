"""The file of results, as others may have left it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from clover.errors import UserError
from experiments.compare.plan import MethodKey
from experiments.compare.results import Measurement, read_records
from tests.experiments.compare.hand import measured, trained


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("seconds",), float("nan")),
        (("result", "methods", 1, "batches", 0), [4, 0.0]),
        (("result", "methods", 1, "batches", 0), [0, 1.0]),
        (("result", "methods", 1, "batches"), [[4, 1.0]]),
        (("result", "methods"), []),
        (("result", "methods", 1, "acceptances"), []),
        (("result", "methods", 1, "step_milliseconds"), {}),
        (("result", "heads", "positions"), [[4]]),
        (("result", "heads", "positions", 0), []),
        (("result", "heads", "forced", 0, 0), [4]),
    ],
)
def test_a_line_with_numbers_that_no_run_leaves_is_named(
    tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    draft = MethodKey("clover2", None, "paper", 3, 1e-3, 0)
    records = [
        trained(draft, {"code": [(1, 4), (2, 4)]}),
        measured("code", {draft: [(4, 2, 1.0, 2.0), (4, 3, 1.0, 2.0)]}),
    ]
    row: Any = json.loads(json.dumps(asdict(records["heads" not in place])))
    *above, last = place
    part = row
    for key in above:
        part = part[key]
    part[last] = value
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="line 1, which clover did not write so"):
        read_records(tmp_path / "results.jsonl")


def test_older_results_with_other_names_of_the_phases_are_read(tmp_path: Path) -> None:
    row: Any = json.loads(json.dumps(asdict(measured("code", {MethodKey("clover2"): [(4, 2, 1.0, 2.0)]}))))
    for method in row["result"]["methods"]:
        method["step_milliseconds"] = {"draft": 1.0, "verify": 2.0, "accept": 3.0, "keep": 4.0}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    (record,) = read_records(tmp_path / "results.jsonl")
    assert isinstance(record.result, Measurement)
    assert record.result.methods[1].step_milliseconds == {
        "draft": 1.0,
        "run": 2.0,
        "verify": 3.0,
        "keep": 4.0,
    }
