from __future__ import annotations

import json
from pathlib import Path

import pytest

from clover.compare.results import Record, append_record, drop_half_line, read_records
from clover.errors import UserError


def written(path: Path, records: list[Record]) -> Path:
    for record in records:
        append_record(path, record)
    return path


def test_what_is_written_is_read(tmp_path: Path, hand_made: list[Record]) -> None:
    assert read_records(written(tmp_path / "new" / "r.jsonl", hand_made)) == hand_made


def test_the_later_of_two_lines_counts(tmp_path: Path, hand_made: list[Record]) -> None:
    file = written(tmp_path / "r.jsonl", hand_made[:2])
    later = json.loads(file.read_text().splitlines()[0]) | {"seconds": 99.0}
    with file.open("a") as lines:
        lines.write(json.dumps(later) + "\n")
    assert [record.seconds for record in read_records(file)] == [99.0, 1.5]


def test_half_a_line_is_left_out_and_taken_off(tmp_path: Path, hand_made: list[Record]) -> None:
    file = written(tmp_path / "r.jsonl", hand_made[:2])
    whole = file.read_text()
    file.write_text(whole + whole[:50])
    assert read_records(file) == hand_made[:2]
    drop_half_line(file)
    assert file.read_text() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not a result"),
        ("[]", "line 2 is not a result"),
        ('{"kind": "poem"}', "line 2 is not a result"),
        ('{"kind": "text", "result": {"texts": 1}}', "line 2: result lacks the key 'tokens'"),
        (
            '{"kind": "text", "result": {"texts": 1, "tokens": 1, "learnt": 1, "fingerprint": "f"}}',
            "line 2: provenance must be a table",
        ),
    ],
)
def test_a_line_that_is_no_result_is_named(
    tmp_path: Path, hand_made: list[Record], line: str, message: str
) -> None:
    file = written(tmp_path / "r.jsonl", hand_made[:1])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        read_records(file)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_records(tmp_path / "none.jsonl")
