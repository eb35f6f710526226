from collections.abc import Callable

import pytest

from clover.cli.removed import REMOVED, replacement


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "paint": "clover paint is gone; use clover draw",
        "recipe huge": "clover recipe huge is gone; train it",
        "--colour": "--colour is gone; give --shade",
        "chat --colour": "clover chat shows no colours",
    }
    for words, line in rows.items():
        monkeypatch.setitem(REMOVED, words, line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["paint", "--colour", "red"], "clover paint is gone; use clover draw"),
        (["generate", "x", "--colour", "red"], "--colour is gone; give --shade"),
        (["generate", "--colour=red"], "--colour is gone; give --shade"),
        (["chat", "--colour"], "clover chat shows no colours"),
    ],
)
def test_what_was_removed_is_answered_by_what_replaces_it(
    run_clover: Callable, arguments: list[str], line: str
) -> None:
    assert run_clover(*arguments) == (2, "", f"clover: error: {line}\n")


def test_words_that_never_were_are_usage_errors(run_clover: Callable) -> None:
    assert "No such command 'sing'" in run_clover("sing").err
    assert "No such option: --volume" in run_clover("chat", "--volume").err


def test_lines_are_found_by_command_and_by_option() -> None:
    assert replacement("recipe huge") == "clover recipe huge is gone; train it"
    assert replacement("chat") is None
    assert replacement("chat", "--colour") == "clover chat shows no colours"
    assert replacement("train", "--colour") == "--colour is gone; give --shade"


def test_every_line_is_one_line() -> None:
    assert all(line and "\n" not in line and not line.endswith(".") for line in REMOVED.values())
