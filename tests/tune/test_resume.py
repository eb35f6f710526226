from pathlib import Path

from clover.tune.resume import Resume


def test_a_value_is_measured_once_under_the_same_conditions(tmp_path: Path) -> None:
    output, conditions = tmp_path / "tuning.json", {"requests": [(1, 2)]}
    first = Resume(output, conditions)
    assert not first.path.exists()
    assert first.get("a", lambda: [1.5]) == [1.5]
    again = Resume(output, conditions)
    assert again.get("a", lambda: [2.5]) == [1.5]
    assert Resume(output, {"requests": [(1, 3)]}).get("a", lambda: [3.5]) == [3.5]
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"conditions": {}, "values": 1}'):
        (tmp_path / "tuning.partial.json").write_text(text)
        assert Resume(tmp_path / "tuning.json", {}).get("a", lambda: 1) == 1
