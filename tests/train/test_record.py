"""The record of a training, as it is and as it should not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clover.errors import UserError
from clover.train.record import RECORD_FILE, read_record

RESULT: dict[str, Any] = {
    "finished": True,
    "steps": 3,
    "tokens": 384,
    "seconds": 1.5,
    "training": {"loss": 2.0, "accuracy": [0.1, 0.2], "lr": 0.1},
    "validation": None,
}


def write(folder: Path, record: object) -> Path:
    (folder / RECORD_FILE).write_text(json.dumps(record))
    return folder


def test_the_loss_is_that_of_held_out_texts_where_there_are_some(tmp_path: Path) -> None:
    found = read_record(write(tmp_path, {"result": RESULT}))
    assert (found.result.loss, found.result.training.accuracy) == (2.0, [0.1, 0.2])
    assert found.config.writing_seconds == 0
    judged = RESULT | {"validation": {"loss": 3.0, "accuracy": [0.5]}}
    found = read_record(write(tmp_path, {"result": judged, "config": {"writing_seconds": 7.5, "lr": 1}}))
    assert (found.result.loss, found.config.writing_seconds) == (3.0, 7.5)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "result is missing"),
        ([], "must"),
        ({"result": RESULT | {"seconds": "long"}}, "result.seconds is 'long'"),
        ({"result": RESULT | {"tokens": -1}}, "result.tokens is -1"),
        ({"result": RESULT | {"training": {}}}, "result.training.loss is missing"),
        ({"result": RESULT, "config": {"writing_seconds": None}}, "config.writing_seconds"),
    ],
)
def test_a_damaged_record_is_named_in_one_line(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_record(write(tmp_path, record))
    assert RECORD_FILE in str(error.value) and "\n" not in str(error.value)


def test_a_record_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot read .*{RECORD_FILE}"):
        read_record(tmp_path)
