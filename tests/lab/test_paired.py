"""`benchmarks/paired.py` on files made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paired
from clover.errors import UserError

COUNTS = {"a.json": [[8, 4], [8, 5], [6, 3]], "b.json": [[8, 5], [8, 6], [6, 4]]}
HASHES = ["01", "02", "03"]


def write(folder: Path, name: str, **fields: Any) -> str:
    setting = {"tree": "chain:3", "temperature": 0.0, "per_prompt": COUNTS[name], "prompt_hashes": HASHES}
    setting = {key: value for key, value in (setting | fields).items() if value is not None}
    (folder / name).write_text(json.dumps({"settings": [setting | {"nodes": 3}]}))
    return str(folder / name)


def test_the_difference_is_that_of_tau(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paired.main(write(tmp_path, "a.json"), write(tmp_path, "b.json"))
    out, err = capsys.readouterr()
    name, value, _, error = out.rsplit(" ", 3)
    assert (name, err) == ("chain:3, T 0:", "")
    assert float(value) == round(22 / 12 - 22 / 15, 2) and 0 < float(error) < 0.1


def test_a_difference_is_paired() -> None:
    # deviations: (2 - 16/6) - (1 - 11/6) = 1/6, (5 - 32/6) - (3 - 22/6) = 1/3 and so -1/2, of 6 each
    found = paired.difference([(2.0, 1.0), (5.0, 2.0), (9.0, 3.0)], [(1.0, 1.0), (3.0, 2.0), (7.0, 3.0)])
    spread = ((1 / 6) ** 2 + (1 / 3) ** 2 + (1 / 2) ** 2) * 3 / 2
    assert found.value == pytest.approx(16 / 6 - 11 / 6)
    assert found.error == pytest.approx(spread**0.5 / 6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_hashes": ["01", "03", "02"]}, "the files have other prompts"),
        ({"per_prompt": [[8, 4]], "prompt_hashes": None}, "the files have other prompts"),
        ({"temperature": 1.0}, "no tree and temperature in common"),
        ({"tree": "chain:4"}, "no tree and temperature in common"),
        ({"per_prompt": None, "prompt_hashes": None}, "b.json has no counts by prompt"),
        ({"per_prompt": [["many", 1]]}, "b.json: settings.0.per_prompt"),
    ],
)
def test_what_cannot_be_paired_is_said(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        paired.main(write(tmp_path, "a.json"), write(tmp_path, "b.json", **fields))


def test_an_older_file_without_hashes_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paired.main(write(tmp_path, "a.json", prompt_hashes=None), write(tmp_path, "b.json"))
    out, err = capsys.readouterr()
    assert out.startswith("chain:3, T 0: 0.37 ± ") and "taken as the same" in err
