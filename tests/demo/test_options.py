"""Options, checked before any time is spent."""

from pathlib import Path

import pytest

from clover.demo import DemoOptions
from clover.errors import UserError


def test_command_repeats_what_differs_from_the_defaults() -> None:
    options = DemoOptions(target="a b", drafts=("x",), max_new_tokens=4, json=Path("x.json"))
    assert options.command == "clover demo --target 'a b' --draft x --max-new-tokens 4 --json x.json"
    assert DemoOptions().command == "clover demo"


def test_the_bench_that_is_shown(tmp_path: Path) -> None:
    options = DemoOptions(target="t", drafts=("d",), dtype="float32", picture=tmp_path / "new" / "a.png")
    shown = options.bench(16)
    assert (shown.target, shown.dtype, shown.rounds) == ("t", "float32", 1)
    assert (shown.temperatures, shown.max_new_tokens) == ((0.0, 0.8), 16)
    assert DemoOptions(temperature=0.0, max_new_tokens=4).bench(16).temperatures == (0.0,)
    assert (tmp_path / "new").is_dir()


def test_what_would_fail_at_the_end_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for options, message in (
        (DemoOptions(target="t"), "no draft"),
        (DemoOptions(tree="drawn:chain:2"), "give another tree or --temperature 0"),
        (DemoOptions(picture=tmp_path / "demo.gif"), r"must end in \.png, \.pdf, \.svg"),
        (DemoOptions(picture=tmp_path / "folder.png"), "is a directory"),
        (DemoOptions(html=tmp_path / "a.txt"), r"must end in \.html"),
    ):
        with pytest.raises(UserError, match=message):
            options.bench(16)
