import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import clover
import clover.api


@pytest.fixture
def chat(run_clover: Callable, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Return a function that runs ``clover chat`` with the lines a user types."""

    def call(*lines: str, target: Path = tiny_target, new_tokens: int = 8) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        flags = ["--max-new-tokens", new_tokens, "--temperature", 0]
        return run_clover("chat", "--tree", "plain", "--target", target, *flags)

    return call


def say(target: Path, *turns: str) -> list[str]:
    conversation = clover.load(str(target), tree="plain").chat(max_new_tokens=8)
    return ["".join(conversation.say(turn)) for turn in turns]


def test_turns_build_on_each_other(chat: Callable, tiny_target: Path) -> None:
    code, out, err = chat("hello", "  again  ")
    assert (code, out.split("\n")[:-1]) == (0, "\n".join(say(tiny_target, "hello", "again")).split("\n"))
    assert err.count("tokens/s") == 2


def test_new_starts_over(chat: Callable, tiny_target: Path) -> None:
    answer = say(tiny_target, "hello")[0]
    assert chat("hello", "/new", "hello").out == f"{answer}\n{answer}\n"


def test_exit_ends_before_the_next_turn_and_blank_lines_are_none(chat: Callable, tiny_target: Path) -> None:
    assert chat("", "   ", "hello", "/exit", "more").out == say(tiny_target, "hello")[0] + "\n"


def test_long_conversation_goes_on_after_a_clear_line(chat: Callable) -> None:
    code, _, err = chat("hello", "x" * 300, "/new", "hello")
    assert code == 0
    assert err.count("tokens/s") == 2
    assert err.count("clover: error: ") == 1
    assert "/new starts over" in err


def test_question_that_is_too_long_does_not_end_the_chat(chat: Callable, tiny_target: Path) -> None:
    code, out, err = chat("x" * 300, "hello")
    assert (code, out) == (0, say(tiny_target, "hello")[0] + "\n")
    assert err.count("clover: error: ") == 1


def test_question_that_is_too_long_after_a_broken_off_answer_is_one_line(
    chat: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = clover.api.Conversation.say

    def broken_off(self: clover.api.Conversation, text: str) -> Iterator[str]:
        for piece in whole(self, text):
            yield piece
            raise KeyboardInterrupt

    monkeypatch.setattr("clover.api.Conversation.say", broken_off)
    code, out, err = chat("hello", "x" * 300)
    assert (code, out.count(" …\n"), err.count("\n")) == (0, 1, 1)
    assert err.startswith("clover: error: ")


def test_chat_without_any_answer_fails(chat: Callable) -> None:
    code, out, err = chat("x" * 300)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_wrong_option_is_an_error_before_the_first_question(run_clover: Callable, tiny_target: Path) -> None:
    code, out, err = run_clover("chat", "--tree", "plain", "--target", tiny_target, "--top-p", 2)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "top_p" in err


def test_target_that_cannot_chat_is_an_error(chat: Callable, tiny_target_without_template: Path) -> None:
    code, out, err = chat("hello", target=tiny_target_without_template)
    assert (code, out) == (2, "")
    assert "chat template" in err


def test_interruption_stops_the_answer_alone(chat: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clover.api.Conversation.say", interrupted)
    assert chat("hello", "again") == (0, " …\n …\n", "")
