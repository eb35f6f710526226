"""Reading files: bounded, strict, and every refusal one line that names the file and the field."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from clover.errors import UserError
from clover.files import parse_json, read_json, read_model, read_text, validated


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0

    def __post_init__(self) -> None:
        if self.x == 13:
            raise UserError("x is 13; it must be another number")


class Drawing(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["drawing-1"]
    points: tuple[Point, ...]
    names: dict[str, str | None] = {}
    size: int = Field(default=1, ge=1)


def test_what_fits_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '\ufeff{"format": "drawing-1", "points": [{"x": 1, "y": 2}, {"x": 3}], "names": {"a": null}}'
    )
    found = read_model(path, Drawing)
    assert found == Drawing(format="drawing-1", points=(Point(1, 2.0), Point(3)), names={"a": None})
    assert validated(tuple[Point, ...], [{"x": 1}], "here") == (Point(1),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "5"}, r"a.json: size is '5'; it must be a valid integer"),
        ({"size": True}, r"size is True; it must be a valid integer"),
        ({"size": 1.5}, r"size is 1.5; it must be a valid integer"),
        ({"size": 0}, r"size is 0; it must be greater than or equal to 1"),
        ({"size": None}, r"size is None; it must be"),
        ({"points": [{"x": 1}, {"y": 2}]}, r"points.1.x is missing"),
        ({"points": [{"x": 1, "y": "z"}]}, r"points.0.y is 'z'; it must be a valid number"),
        ({"points": [{"x": 13}]}, r"a.json: points.0: x is 13; it must be another number"),
        ({"points": {}}, r"points is \{\}; it must be"),
        ({"points": [[1]]}, r"points.0 is \[1\]; it must be"),
        ({"format": "drawing-2"}, r"format is 'drawing-2'; it must be 'drawing-1'"),
        ({"colour": 1}, r"colour is unknown"),
        ({"two\nlines" * 1000: 1}, r": two linestwo \S.*\.\.\. is unknown"),
        ({"names": {"a": "x" * 9999, "b": 1}}, r"names.b is 1; it must be"),
        ({"names": ["x" * 9999]}, r"names is \['x+\.\.\.; it must be"),
    ],
)
def test_a_field_that_does_not_fit_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"format": "drawing-1", "points": []} | change))
    with pytest.raises(UserError, match=message) as error:
        read_model(path, Drawing)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_named_pipe_is_not_waited_for_and_one_of_a_shell_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"cannot read .*{name}: it is a named pipe; put a file"):
            read_text(tmp_path / name)
    reading, writing = os.pipe()
    os.write(writing, b"some text")
    os.close(writing)
    assert read_text(f"/dev/fd/{reading}") == "some text"
    os.close(reading)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "EOF"),
        ('{"a": 1', "EOF"),
        ('{"a": ' + "9" * 5000 + "}", "number out of range"),
        ('{"a": "\\ud800"}', "hex escape"),
        ('{"\\uDFFF": 1}', "hex escape"),
        ("[" * 100_000, "recursion limit"),
        ('{"a":' * 100_000, "recursion limit"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"a file is not valid JSON: .*{message}") as error:
        parse_json(text, "a file")
    assert "\n" not in str(error.value)


def test_strict_json_is_read() -> None:
    text = (
        '{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e300, "d": "\\ud83d\\ude00", "e": null}'
    )
    assert parse_json(text, "a file") == {"a": 2**64 - 1, "b": -(2**63), "c": 1e300, "d": "😀", "e": None}


def test_objects_that_json_cannot_hold_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for obj in (
        {"x": 1, "y": float("nan")},
        {"x": 1, "y": 1e999},
        {"x": object()},
        {"x": deep},
        {"x": "\ud800"},
    ):
        with pytest.raises(UserError, match="here"):
            validated(Point, obj, "here")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    large, binary, loop = tmp_path / "large", tmp_path / "binary", tmp_path / "loop"
    large.write_bytes(b" " * 101)
    binary.write_bytes(b"{\xff}")
    loop.symlink_to(loop)
    assert read_text(large, max_bytes=101) == " " * 101
    for path, message in (
        (large, "large is larger than"),
        (binary, r"binary is not valid UTF-8 text \(byte 1"),
        (loop, "cannot read .*loop: too many levels"),
        (tmp_path, "is a directory"),
        (tmp_path / "missing", "cannot read .*missing: no such file"),
        ("a\0b", "cannot read 'a.*b'"),
        ("/dev/zero", "/dev/zero is larger than"),
    ):
        with pytest.raises(UserError, match=message):
            read_json(path, max_bytes=100)
