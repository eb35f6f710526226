"""A suite that is run again after it has changed, in the directory of its earlier results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.compare.run import Comparison
from tests.experiments.compare.runs import compare, lines


@pytest.fixture
def again(tmp_path: Path, finished: Path) -> Path:
    """A copy of the results of the suite, with the drafts that belong to them."""
    output = tmp_path / "out"
    output.mkdir()
    (tmp_path / "out.work").symlink_to(finished.with_name("out.work"))
    (output / "results.jsonl").write_text((finished / "results.jsonl").read_text())
    return output


@pytest.mark.long
def test_half_a_line_is_run_again_and_results_of_an_older_suite_are_pointed_out(
    tiny_files: Path, again: Path
) -> None:
    rows = (again / "results.jsonl").read_text().splitlines(keepends=True)
    foreign = json.dumps(json.loads(rows[-1]) | {"key": "0" * 12}) + "\n"
    (again / "results.jsonl").write_text("".join([*rows[:-1], foreign]) + rows[-1][:40])
    shown = compare(tiny_files, again)
    assert "6 cells, 5 of them done" in shown and "holds 1 results that the suite does not ask for" in shown
    assert [row["key"] for row in lines(again)[:-2]] == [json.loads(row)["key"] for row in rows[:-1]]
    assert lines(again)[-1]["key"] == json.loads(rows[-1])["key"]


def published(files: Path, output: Path, folder: Path, **options: Any) -> dict[str, Any]:
    compare(files, output, publish=folder, **options)
    return json.loads((folder / "suite.json").read_text())


def prompts_of(content: dict[str, Any]) -> list[int]:
    return [one["prompts"] for one in content["decoding"] if (one["task"], one["batch_size"]) == ("lines", 1)]


def table(page: Path, title: str) -> str:
    return page.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.long
def test_a_run_with_fewer_prompts_in_between_does_not_show_in_the_report(
    tiny_files: Path, tmp_path: Path, again: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = published(tiny_files, again, tmp_path / "whole")
    page = again / "report.md"
    speed = table(page, "Speed")
    fewer = published(tiny_files, again, tmp_path / "fewer", max_prompts=2)
    assert set(prompts_of(whole)) == {3} and set(prompts_of(fewer)) == {2}
    shown = published(tiny_files, again, tmp_path / "again")
    for kind in ("decoding", "heads"):
        assert shown[kind] == whole[kind] != fewer[kind]

    def interrupted(self: Comparison) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(tiny_files, again)
    assert table(page, "Speed") == speed
    with pytest.raises(KeyboardInterrupt):
        compare(tiny_files, again, max_prompts=2)
    assert table(page, "Speed") != speed


@pytest.mark.long
@pytest.mark.parametrize(("saved", "asked"), [("clover1", None), (None, "clover1"), ("medusa", "clover1")])
def test_the_ablation_is_the_one_that_the_suite_asks_for_now(
    tiny_files: Path, again: Path, saved: str | None, asked: str | None
) -> None:
    rows = lines(again)
    rows[1]["result"]["against"] = saved  # the second training is that of "labelled"
    (again / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = (tiny_files / "suite.toml").read_text()
    (tiny_files / "now.toml").write_text(suite if asked else suite.replace('against = "clover1"\n', ""))
    assert "6 cells, 6 of them done" in compare(tiny_files, again, "now.toml")
    assert ("labelled" in table(again / "report.md", "Ablation")) == (asked is not None)
