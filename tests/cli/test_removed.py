from collections.abc import Callable

import pytest

from clover.errors import REPLACEMENTS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "--colour", "red"], "compare"),
        (["recipe", "smollm2"], "recipe"),
        (["generate", "x", "--method", "draft"], "--method"),
        (["chat", "--method=draft"], "--method"),
        (["audit", "--against", "x"], "audit --against"),
    ],
)
def test_what_was_removed_is_answered_by_what_replaces_it(
    run_clover: Callable, arguments: list[str], words: str
) -> None:
    assert run_clover(*arguments) == (2, "", f"clover: error: {REPLACEMENTS[words]}\n")


def test_words_that_never_were_are_usage_errors(run_clover: Callable) -> None:
    assert "No such command 'sing'" in run_clover("sing").err
    assert "No such option: --volume" in run_clover("chat", "--volume").err
    assert "No such option: --against" in run_clover("chat", "--against").err


def test_every_line_is_one_line() -> None:
    assert all(line and "\n" not in line and not line.endswith(".") for line in REPLACEMENTS.values())
