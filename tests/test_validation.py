"""Reading JSON: strict, and every refusal one line that names the file and the field."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from clover.errors import UserError
from clover.files import write_json
from clover.validation import parse_json, read_json, read_model, validated


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
        ({"two\nlines" * 1000: 1}, r": two linestwo \S.* is unknown"),
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


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.json"
    write_json(path, {"τ": 2.9, "list": [1, None]})
    assert read_json(path) == {"τ": 2.9, "list": [1, None]}
    assert "τ" in path.read_text(encoding="utf-8")
    assert [one.name for one in path.parent.iterdir()] == ["run.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"step": 1})
    with pytest.raises(TypeError):
        write_json(path, {"step": object()})
    assert read_json(path) == {"step": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*run.json: no such file"),
        ("{broken", "run.json is not valid JSON"),
        ("", "run.json is not valid JSON"),
        ("[" * 100_000, "run.json is not valid JSON"),
        (json.dumps([1]), "run.json must hold a JSON object, not a list"),
        (b"\xff\xfe\x00", "run.json is not valid UTF-8"),
    ],
)
def test_bad_json_is_named(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message):
        read_json(path)
