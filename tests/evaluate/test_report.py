import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from clover.errors import UserError
from clover.evaluate import EvaluationReport, HeadAccuracy
from clover.evaluate.picture import draw, save_picture
from clover.evaluate.progress import EvaluationProgress
from clover.evaluate.table import print_report

MANY = tuple((tree, t) for tree in ("chain:2", "clover2", "eagle2:60", "drawn:clover2") for t in (0.0, 1.0))


def printed(report: EvaluationReport, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(console, report)
    return console.file.getvalue()  # type: ignore[attr-defined]


def words(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


def test_tables_show_all_figures_at_100_columns(make_report: Callable[..., EvaluationReport]) -> None:
    text = printed(make_report(left_out=2))
    assert max(len(line) for line in text.splitlines()) <= 100 and "…" not in text.replace("2, …", "")
    assert "targets/[one]" in text and "2 more do not fit into the context" in text
    forced, chained = words(text, "2  ")
    assert forced == ["2", "90", "22.2", "33.3", "44.4", "55.6", "66.7"]
    assert chained == [
        *("2", "90", "11.1", "16.7", "22.2", "27.8", "33.3"),
        *("45", "22.2", "33.3", "44.4", "55.6", "66.7"),
    ]
    assert words(text, "chain:2   0") == [["chain:2", "0", "all", "4", "160", "2.00", "75", "33"]]
    assert words(text, "rag") == [["rag", "1", "80", "2.00", "75", "33"]]
    assert words(text, "digits") == [["digits", "50.0", "of", "80"]]
    assert words(text, "number 17–32") == [["number", "17–32", "25.0", "of", "20"]]
    assert not words(text, "special")  # none was emitted


def test_the_target_has_a_table_of_its_own_where_it_differs(
    make_report: Callable[..., EvaluationReport],
) -> None:
    same = make_report()
    assert "(it is also the target's first choice)" in printed(same)
    heads = HeadAccuracy(**{**vars(same.heads), "target": same.heads.text + 1})
    text = printed(make_report(heads=heads))
    assert "the target's own first choice\n" in text
    row = "1 100 50.0 60.0 70.0 80.0 90.0 100 51.0 61.0 71.0 81.0 91.0"
    assert " ".join(words(text, "1  ")[0]) == row


def test_many_settings_still_fit(make_report: Callable[..., EvaluationReport]) -> None:
    text = printed(make_report(settings=MANY))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.count("Where the draft is weak") == 3
    assert text.count("drawn:clover2") == 4  # two temperatures in two tables


def test_a_head_that_got_nowhere_has_no_figure(make_report: Callable[..., EvaluationReport]) -> None:
    grid = torch.zeros(2, 5, dtype=torch.long)
    heads = HeadAccuracy(torch.tensor([9, 8]), torch.tensor([9, 0]), grid, grid, grid)
    assert words(printed(make_report(heads=heads)), "2  ")[1][-5:] == ["–"] * 5


def test_json_holds_all(make_report: Callable[..., EvaluationReport]) -> None:
    found = json.loads(json.dumps(make_report().to_dict()))
    assert found["heads"]["chained_of_reached"][1] == pytest.approx(
        [10 / 45, 15 / 45, 20 / 45, 25 / 45, 30 / 45]
    )
    assert found["settings"][0]["tree"] == "chain:2" and found["settings"][0]["tau"] == 2.0
    assert found["versions"] == {"clover": "1"} and found["command"] == "clover evaluate"


@pytest.mark.parametrize("settings", [(("own tree", 0.0),), MANY])
def test_the_picture_shows_heads_kinds_and_positions(
    make_report: Callable[..., EvaluationReport], tmp_path: Path, settings: tuple[tuple[str, float], ...]
) -> None:
    report = make_report(settings=settings)
    heads, kinds, positions = draw(report).axes
    assert [round(bar.get_height()) for bar in heads.patches[-2:]] == [50, 22]  # top 1 is drawn last
    assert list(heads.lines[0].get_ydata()) == pytest.approx([25, 100 * 10 / 90])
    assert len(kinds.get_xticks()) == 5
    assert len(positions.lines) == min(len(settings), 6)
    assert list(positions.lines[0].get_ydata()) == [75.0]  # 20 tokens are too few
    for name in ("a.png", "a.svg"):
        save_picture(report, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg"}


def test_a_picture_that_cannot_be_written_is_a_users_error(
    make_report: Callable[..., EvaluationReport], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="cannot write"):
        save_picture(make_report(), tmp_path / "missing" / "a.png")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_tells_the_time_left(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("clover.evaluate.progress.time.monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with EvaluationProgress(console) as progress:
        progress.begin(200)
        progress.say("own tree, temperature 0")
        now[0] += 20
        progress.advance(50)
        assert progress.describe() == "own tree, temperature 0, 1:00 left"
        now[0] += 1
        progress.advance(10)  # too soon for another line
        progress.advance(1000)
        assert progress.describe().endswith("0:00 left")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert terminal or lines == ["25%  own tree, temperature 0, 1:00 left"]
