"""Files of answers that earlier versions wrote."""

from pathlib import Path

import pytest

from clover.data.regenerated import read_regenerated
from clover.errors import UserError


def test_each_text_is_read_once_in_order_without_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    lines = [
        '{"index": 1, "tokens": [4, 5], "loss_mask": [0, 1]}',
        '{"index": 0, "tokens": [3], "loss_mask": [1]}',
    ]
    path.write_text("\n".join([*lines, lines[0], '{"index": 2, "tok']))
    first, second = read_regenerated(path)
    assert (first.tokens.tolist(), second.tokens.tolist()) == ([3], [4, 5])
    assert second.loss_mask.tolist() == [False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"index": 1}', "tokens is missing"),
        ("not json", "Invalid JSON"),
        ('{"index": 0, "tokens": [1, 2], "loss_mask": [1]}', "differ in length"),
        (
            '{"index": 1, "tokens": [1, "2"], "loss_mask": [1, 1]}',
            "tokens.1 is '2'; it must be a valid integer",
        ),
        (
            '{"index": 1, "tokens": [4294967296], "loss_mask": [1]}',
            "tokens.0 is 4294967296; it must be less than",
        ),
        ('{"index": 1, "tokens": [NaN], "loss_mask": [1]}', "tokens.0 is nan"),
        ('{"tokens": ' + "[" * 9999, "Invalid JSON"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"index": 0, "tokens": [1], "loss_mask": [1]}\n' + content + "\n")
    with pytest.raises(UserError, match=f"w.jsonl, line 2, .*{message}"):
        read_regenerated(path)
