"""Records of files of every kind."""

import bz2
import gzip
import json
import lzma
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clover.data import rows
from clover.data.formats import Record, Written, WrittenSample, parse_record
from clover.data.rows import open_rows
from clover.errors import UserError

SAY, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
LINES = [json.dumps({"text": f"text {i} é"}) for i in range(3)]


def read_records(paths: list[Path]) -> Iterator[Record]:
    return (parse_record(fields, where) for path in paths for fields, where in open_rows(path))


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.jsonl", "\n".join([LINES[0], "", LINES[1], LINES[2]]), ["line 1", "line 3", "line 4"]),
        (
            "a.jsonl",
            "\n".join([LINES[0], "   ", LINES[1], "\t \r", " " + LINES[2], "  "]),
            ["line 1", "line 3", "line 5"],
        ),
        ("a.jsonl", "\ufeff" + "\r\n".join(LINES) + "\r\n", ["line 1", "line 2", "line 3"]),
        ("a.json", f"[{', '.join(LINES)}]", ["record 1", "record 2", "record 3"]),
        ("a.json", json.dumps(json.loads(LINES[0]), indent=2), ["record 1"]),
        ("a.JSON", LINES[0], ["record 1"]),
    ],
)
def test_json_files(tmp_path: Path, name: str, content: str, places: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    records = list(read_records([path]))
    assert [record.where for record in records] == [f"{path}, {place}" for place in places]
    assert [record.completion for record in records] == [f"text {i} é" for i in range(len(places))]


def test_txt_is_one_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in (b"one\n\ntwo\n", b"one\r\n\r\ntwo\r\n"):
        path.write_bytes(content)
        assert list(read_records([path])) == [Record(str(path), completion="one\n\ntwo\n")]


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    rows = [
        {"messages": [SAY, ANSWER], "text": None, "other": 1},
        {"messages": None, "text": "t", "other": 2},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    first, second = read_records([path])
    assert first.messages == (SAY, ANSWER)
    assert second == Record(f"{path}, record 2", completion="t")


def test_parquet_keeps_the_tokens_that_a_target_wrote(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    sample = {"tokens": [1, 2, 3], "learnt": [[1, 3]]}
    written = {"index": 0, "tokenizer": "a1", "cut": False, "samples": [sample]}
    rows = [{"prompt": "a", "completion": "b", "clover": one} for one in (written, None)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    first, second = read_records([path])
    assert first.written == Written("a1", False, (WrittenSample([1, 2, 3], [(1, 3)]),))
    assert second.written is None


def test_what_parquet_cannot_hand_over_is_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    for column in (
        pa.array([10**15], pa.timestamp("ms")),
        pa.array([b"\xff"]).view(pa.string()),
    ):
        parquet.write_table(pa.table({"text": ["t"], "source": column}), path)
        with pytest.raises(UserError, match=r"a\.parquet, record 1 cannot be read: "):
            list(read_records([path]))


def test_files_are_read_one_record_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES[0] + "\nbroken\n")
    records = read_records([path, tmp_path / "missing.txt"])
    assert next(records).completion == "text 0 é"
    with pytest.raises(UserError, match=r"line 2 is not valid JSON"):
        next(records)


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"x",
            r"a\.csv: unknown kind of file; accepted: .txt, .jsonl, .json, .parquet, and OWNER/NAME",
        ),
        ("a.txt", b"", "a.txt holds no records"),
        ("a.txt", b" \n", "a.txt holds no records"),
        ("a.jsonl", b"\n\n", "a.jsonl holds no records"),
        ("a.json", b"[]", "a.json holds no records"),
        ("a.json", b"", "a.json is not valid JSON"),
        ("a.json", b'{"text": "x"', "a.json is not valid JSON"),
        ("a.json", b"[3]", "a.json, record 1: a record must be a JSON object, not a number"),
        ("a.jsonl", f'{{"text": {DEEP}'.encode(), "line 1 is not valid JSON: recursion limit"),
        ("a.json", DEEP.encode(), "recursion limit"),
        ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n\xff\xfe', "line 2 is not valid UTF-8"),
        ("a.txt", b"\x89PNG\r\n", "a.txt is not valid UTF-8"),
        ("a.txt", b"a\0b", "a.txt is not text: it holds zero bytes"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 is not valid JSON: unexpected end of hex escape"),
        ("a.parquet", b"PAR1 nonsense PAR1", "a.parquet cannot be read: "),
        ("a.parquet", b"", "a.parquet cannot be read: "),
    ],
)
def test_hostile_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("datasets")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        list(read_records([tmp_path / name]))
    assert "\n" not in str(raised.value)


def test_huge_lines_and_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_RECORD_BYTES", 50)
    monkeypatch.setattr(rows, "_MAX_JSON_BYTES", 50)
    for name in ("a.jsonl", "a.txt", "a.json"):
        (tmp_path / name).write_text(LINES[0] + "\n" + "x" * 100)
        with pytest.raises(UserError, match=r"longer than|is over"):
            list(read_records([tmp_path / name]))


def test_what_is_not_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.json").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, message in (
        ("d.json", "is a directory"),
        ("none.jsonl", "cannot read .*none.jsonl"),
        ("pipe.jsonl", "is a named pipe"),
    ):
        with pytest.raises(UserError, match=message):
            list(read_records([tmp_path / name]))
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="is read by datasets: pip install"):
        list(read_records([tmp_path / "a.parquet"]))


def test_a_long_text_is_read_in_pieces_that_end_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_PIECE_BYTES", 20)
    path, text = tmp_path / "a.txt", "".join(f"line {i} é\n" for i in range(9)) + "x" * 50 + "\nthe end"
    path.write_text(text)
    records = list(read_records([path]))
    assert "".join(record.completion for record in records) == text
    assert all(record.completion.endswith("\n") for record in records[:-1])
    assert [record.where for record in records[:2]] == [f"{path}, from line 1", f"{path}, from line 3"]
    assert max(len(record.completion.encode()) for record in records[:4]) <= 20


def test_only_the_records_asked_for_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'\r\n{{"text": "{i}"}}\nbroken\n' for i in range(100)))
    found = open_rows(path)
    assert found.count == 200
    assert found.read(2 * 70) == ({"text": "70"}, f"{path}, line 212")
    with pytest.raises(UserError, match=r"line 213 is not valid JSON"):
        found.read(2 * 70 + 1)


def test_half_a_character_ends_no_other_record(tmp_path: Path) -> None:
    good = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}
    half = {"conversations": [{"from": "human", "value": "hi \ud83d"}, {"from": "gpt", "value": "hello"}]}
    path = tmp_path / "half.json"
    path.write_text(json.dumps([good, half, good]))
    found = open_rows(path)
    assert (found.count, found.read(0)[0], found.read(2)[0]) == (3, good, good)
    with pytest.raises(UserError, match=r"half.json, record 2 holds half a character"):
        found.read(1)


def test_a_deep_record_ends_no_other_record(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(f'[{{"text": "a"}}, {{"text": "b", "more": {"[" * 300 + "]" * 300}}}, {{"text": "c"}}]')
    found = open_rows(path)
    assert [found.read(place)[0]["text"] for place in (0, 2)] == ["a", "c"]
    with pytest.raises(UserError, match=r"deep.json, record 2 is not valid JSON: recursion limit"):
        found.read(1)


def test_a_line_that_is_too_long_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_RECORD_BYTES", 50)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([LINES[0], "x" * 500, " " * 500, LINES[1], "x" * 50, "y" * 51]))
    found = open_rows(path)
    assert found.count == 5
    assert found.read(2) == (json.loads(LINES[1]), f"{path}, line 4")
    for row, line in ((1, 2), (4, 6)):
        with pytest.raises(UserError, match=f"line {line}: longer than 0 MiB; cut it"):
            found.read(row)


def test_json_lines_by_another_name_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join(LINES))
    with pytest.raises(UserError, match=r"a.json holds one JSON object per line; name it .jsonl"):
        open_rows(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "pointer of Git LFS.*git lfs pull",
        ),
        (gzip.compress(b'{"text": "a"}\n', mtime=0), "compressed by gzip; unpack it"),
        (lzma.compress(b'{"text": "a"}\n'), "compressed by xz; unpack it"),
        (bz2.compress(b'{"text": "a"}\n'), "compressed by bzip2; unpack it"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed by zstd; unpack it"),
        ('{"text": "a"}\n'.encode("utf-16"), "UTF-16 text; convert it"),
        ('{"text": "a"}\n'.encode("utf-32"), "UTF-32 text; convert it"),
        (b"<!DOCTYPE html><html>", "web page in the place"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json", "txt", "parquet", "jsonl.xz"])
def test_files_that_are_something_else_say_what_they_are(
    tmp_path: Path, content: bytes, what: str, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=what):
        open_rows(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_one_json_document_is_no_file_of_json_lines(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "a.jsonl"
    text = (
        json.dumps([{"text": "a"}] * 3, indent=1)
        if indent is None
        else json.dumps({"text": "a"}, indent=indent)
    )
    path.write_text(text)
    with pytest.raises(UserError, match=r"if it is one JSON array or object, name it \.json"):
        open_rows(path)


def pictures() -> list[dict[str, Any]]:
    """Conversations with pictures, in a column, in a list of them, and inside the parts of a message."""
    words, png = [SAY, ANSWER], {"bytes": b"no picture at all", "path": "a.png"}
    part = {"type": "text", "text": "hi", "image": None}
    shown = [{"role": "user", "content": [{"type": "image", "text": None, "image": png}, part]}]
    plain = [{"role": "user", "content": [part]}]
    return [
        {"messages": words, "image": png},
        {"messages": words, "images": [png]},
        {"messages": [*shown, {"role": "assistant", "content": [part]}]},
        {"messages": [*plain, {"role": "assistant", "content": [part]}]},
    ]


@pytest.mark.parametrize("known", [True, False])
def test_records_of_a_table_with_pictures_are_left_out(tmp_path: Path, known: bool) -> None:
    """Whether `datasets` knows that they are pictures (it would decode them then) or not."""
    datasets = pytest.importorskip("datasets")
    columns = [[0], [1], [2, 3]]
    rows = pictures()
    left = []
    for numbers in columns:
        table = datasets.Dataset.from_list([rows[number] for number in numbers])
        if known:
            features = table.features.copy()
            if "image" in features:
                features["image"] = datasets.Image()
            if "images" in features:
                features["images"] = datasets.List(datasets.Image())
            if numbers == [2, 3]:
                features["messages"].feature["content"].feature["image"] = datasets.Image()
            table = table.cast(features)
        path = tmp_path / f"{numbers[0]}.parquet"
        table.to_parquet(path)
        opened = open_rows(path)
        for number in range(opened.count):
            try:
                left.append(parse_record(*opened.read(number)).messages[0]["content"])
            except UserError as error:
                left.append(str(error).partition(", record 1: ")[2].partition(",")[0])
    assert left == ["it has image", "it has images", "messages", "hi"]
