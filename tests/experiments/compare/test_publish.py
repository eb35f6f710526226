"""The directory that results are published in, as others may have left it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clover.errors import UserError
from experiments.compare.plan import MethodKey
from experiments.compare.publish import check_publication, publish_results
from tests.experiments.compare.hand import measured

RECORDS = [measured("code", {MethodKey("clover2", "chain:1"): [(4, 2, 1.0, 2.0), (4, 3, 1.0, 2.0)]})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"tables": []}', "title is missing"),
        ('{"title": "", "note": "", "tables": [{"rows": []}]}', "tables.0.title is missing"),
        ("{}\n{}\n", "not valid JSON"),
    ],
)
def test_a_damaged_file_is_named_before_the_work_and_after_it(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "other.json").write_text(text)
    for publish in (check_publication, lambda name, folder: publish_results(name, RECORDS, folder)):
        with pytest.raises(UserError, match=f"other.json.* {message}"):
            publish("own", tmp_path)


def test_its_own_damaged_file_is_replaced_and_files_of_other_commands_are_no_part_of_the_page(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.json").write_text("{")
    (tmp_path / "demo.json").write_text('{"title": 1}')
    check_publication("own", tmp_path)
    publish_results("own", RECORDS, tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page.count("\n## ") == 1 and "| Clover-2 (paper) | 0 | 1 | 1 | 4.0 ± 0.0 |" in page
