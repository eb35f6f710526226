from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from clover.bench.picture import draw, draw_context, save_context_picture, save_picture
from clover.bench.report import write_lines
from clover.bench.table import print_context, print_report
from tests.bench.hand import context_report, report

KEYS = {
    "method", "batch_size", "temperature", "tokens_per_second", "speedup", "tau", "ideal_share", "draft_share",
    "verify_share", "peak_memory_bytes", "identical",
}  # fmt: skip


def printed(show, what, width: int = 120) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width), what)
    return file.getvalue()


def test_a_json_object_per_method_batch_size_and_temperature(tmp_path: Path) -> None:
    write_lines(tmp_path / "f.jsonl", report())
    found = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(found) == 16
    assert len({(one["method"], one["batch_size"], one["temperature"]) for one in found}) == 16
    for one in found:
        assert set(one) >= KEYS
        assert {"machine", "threads", "versions", "revision", "command", "date"} <= set(one["origin"])
        assert one["ceilings"]["bytes_per_second"] == 4e9


def test_the_context_has_a_json_object_per_method(tmp_path: Path) -> None:
    write_lines(tmp_path / "f.jsonl", context_report())
    first, second = map(json.loads, (tmp_path / "f.jsonl").read_text(encoding="utf-8").splitlines())
    assert (first["method"], second["method"]) == ("plain", "own tree")
    assert abs(first["slope"] - 1e-6) < 1e-12 and first["deviation"] < 1e-9 < second["deviation"]


def test_the_table_shows_figures_spread_and_origin() -> None:
    text = printed(print_report, report())
    for words in (
        "2.00×",
        "2.00–4.00",
        "3.00",
        "80 %",
        "15 %",
        "1 of 2",
        "not able: so it is",
        "clover bench t",
    ):
        assert words in text, words
    assert "4.0 GB/s" in text and "10 Gflop/s" in text and "revision" in text
    assert max(map(len, text.splitlines())) <= 120


def test_nothing_is_cut_off_on_a_narrow_terminal() -> None:
    text = printed(print_report, report(), width=80)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert "own tree (1, 0): speed-up 2.00–4.00" in text
    assert "…" not in printed(print_context, context_report(), width=80)


def test_the_context_table_shows_cost_and_line() -> None:
    text = printed(print_context, context_report())
    assert "4,000" in text and "3.00" in text and "1.000" in text and "0 %" in text


def test_pictures_have_a_panel_per_setting_and_all_points(tmp_path: Path) -> None:
    figure = draw(report())
    assert [axes.get_title() for axes in figure.axes] == [
        f"batch {size}, temperature {t}" for size in (1, 4) for t in (0, 1)
    ]
    assert len(figure.axes[0].patches) == 3  # a bar for all but plain decoding
    (axes,) = draw_context(context_report()).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 2, 3, 2]
    save_picture(report(), tmp_path / "a.png")
    save_context_picture(context_report(), tmp_path / "b.svg")
    assert (tmp_path / "a.png").stat().st_size > 1000 and "</svg>" in (tmp_path / "b.svg").read_text()
