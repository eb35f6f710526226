import json
from pathlib import Path

import pytest

from clover.tune.kept import Kept, kept_path


def never() -> None:
    raise AssertionError("measured again")


def test_what_is_done_is_not_measured_again(tmp_path: Path) -> None:
    file = kept_path(tmp_path / "tuning.json")
    assert Kept(file, {"seed": 1}).get("costs 1", lambda: [1.5]) == [1.5]
    again = Kept(file, {"seed": 1})
    assert again.get("costs 1", never) == [1.5]
    assert again.get("costs 2", lambda: [2.5]) == [2.5]
    assert Kept(file, {"seed": 1}).get("costs 2", never) == [2.5]
    again.remove()
    assert list(tmp_path.iterdir()) == []
    again.remove()


def test_other_conditions_measure_anew(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    Kept(file, {"seed": 1}).get("costs", lambda: 1)
    assert Kept(file, {"seed": 2}).get("costs", lambda: 2) == 2
    assert Kept(file, {"seed": 2}).get("costs", never) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"conditions": {}}', '{"conditions": {}, "values": []}'])
def test_damaged_files_are_not_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kept.json"
    file.write_text(text)
    assert Kept(file, {}).get("costs", lambda: 3) == 3
    assert json.loads(file.read_text())["values"] == {"costs": 3}


def test_an_interrupted_measurement_keeps_those_before(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    file = tmp_path / "kept.json"
    kept = Kept(file, {})
    kept.get("first", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        kept.get("second", interrupt)
    assert Kept(file, {}).get("first", never) == 1  # type: ignore[func-returns-value]
    assert Kept(file, {}).get("second", lambda: 2) == 2
