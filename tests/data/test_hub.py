"""Data sets of the Hub, as `datasets` would hand them over."""

from typing import Any

import pytest

from clover.data.formats import parse_record
from clover.data.hub import is_hub_name
from clover.data.rows import open_rows
from clover.errors import UserError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A Hub with one data set; returns what is asked of it."""
    calls: list[dict[str, Any]] = []

    def load(path: str, split: str) -> Any:
        calls.append({"path": path, "split": split})
        if path != "some/texts":
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub")
        return datasets.Dataset.from_list(
            [{"question": "hi", "answer": f"yes {i}", "id": i} for i in range(3)]
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    return calls


def test_a_data_set_is_read_like_a_file(asked: list[dict[str, Any]]) -> None:
    rows = open_rows("some/texts")
    assert asked == [{"path": "some/texts", "split": "train"}]
    records = [parse_record(*rows.read(i)) for i in range(rows.count)]
    assert [record.messages[1]["content"] for record in records] == ["yes 0", "yes 1", "yes 2"]
    assert records[2].where == "some/texts, record 3"
    assert rows.read(0)[0] == {"question": "hi", "answer": "yes 0"}  # other columns are not read


def test_a_split_may_be_named_and_is_another_content(asked: list[dict[str, Any]]) -> None:
    whole, test = open_rows("some/texts"), open_rows("some/texts:test")
    assert asked[1] == {"path": "some/texts", "split": "test"}
    assert whole.probe() == open_rows("some/texts").probe() != test.probe()


def test_a_data_set_that_cannot_be_found_is_named(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(
        UserError, match="no/such is not a file; as a data set .* Dataset 'no/such' doesn't exist"
    ):
        open_rows("no/such")


@pytest.mark.parametrize("name", ["texts", "a/b/c", "/a/b", "a/b.c:", "../a b"])
def test_other_names_are_files(name: str) -> None:
    assert not is_hub_name(name)
