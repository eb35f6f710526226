from pathlib import Path

from clover.tune.resume import Resume


def test_values_are_read_again_under_the_same_conditions(tmp_path: Path) -> None:
    output, conditions = tmp_path / "tuning.json", {"requests": [(1, 2)]}
    first = Resume(output, conditions)
    assert not first.path.exists()
    first.save("a", [1.5])
    first.save("b", 2)
    again = Resume(output, conditions)
    assert again.values == {"a": [1.5], "b": 2}
    assert Resume(output, {"requests": [(1, 3)]}).values == {}
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_not_read(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"conditions": {}, "values": 1}'):
        (tmp_path / "tuning.partial.json").write_text(text)
        assert Resume(tmp_path / "tuning.json", {}).values == {}
