"""From a suite to its cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from clover.files import checksum
from clover.validation import validated
from experiments.compare.plan import Plan
from experiments.compare.suite import Suite

PLACE = {"target": "tiny", "device": "cpu", "dtype": "float32", "weights": "0" * 32}


def plan(folder: Path, names: tuple[str, ...]) -> Plan:
    systems = [{"system": "clover2", "drafts": [str(folder / name) for name in names], "trees": ["chain:1"]}]
    suite = {"name": "two", "target": "embedded", "systems": systems}
    return Plan(validated(Suite, suite, "suite"), PLACE)


@pytest.mark.parametrize("there", [(0, 1), (0,), (1,)])
def test_a_trained_draft_keeps_its_seed_where_another_is_not_there(
    tmp_path: Path, there: tuple[int, ...]
) -> None:
    names = ("first", "second")
    for seed in there:
        (tmp_path / names[seed]).mkdir()
        for file in ("config.json", "model.safetensors"):
            (tmp_path / names[seed] / file).write_text(f"{file} of {seed}")
    found = plan(tmp_path, names)
    assert [(draft.method.seed, Path(str(draft.place)).name) for draft in found.drafts] == [
        (seed, names[seed]) for seed in there
    ]
    *heads, measuring = found.cells
    assert [cell.drafts[0].method.seed for cell in heads] == list(there)
    assert [draft.method.seed for draft in measuring.drafts] == list(there)


def test_the_weights_of_a_trained_draft_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(path: Path) -> str:
        read.append(path.name)
        return checksum(path)

    (tmp_path / "first").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "first" / file).write_text(file)
    monkeypatch.setattr("experiments.compare.plan.checksum", noted)
    assert len(plan(tmp_path, ("first",)).cells) == 2
    assert read == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["{}", "drawn:{}"])
def test_the_key_tells_what_a_file_with_a_tree_holds(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tree.json"

    def keys(paths: str) -> list[str]:
        file.write_text(paths)
        suite = {
            "name": "one", "target": "embedded", "systems": [{"system": "clover2"}],
            "measuring": {"trees": [name.format(file), "chain:2"], "temperatures": [1.0]},
        }  # fmt: skip
        return [cell.key for cell in Plan(validated(Suite, suite, "suite"), PLACE).cells]

    assert keys("[[0]]") == keys("[[0]]") != keys("[[0], [1]]")


def test_keys_do_not_tell_where_the_training_text_lies(tmp_path: Path) -> None:
    def keys(place: str, text: str) -> list[str]:
        file = tmp_path / place / "texts.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        suite = {
            "name": "one",
            "target": "tiny",
            "systems": [{"system": "clover2"}],
            "text": {"files": [str(file)]},
        }
        return [cell.key for cell in Plan(validated(Suite, suite, "suite"), PLACE).cells]

    assert keys("here", "the text") == keys("there", "the text") != keys("there", "another text")
