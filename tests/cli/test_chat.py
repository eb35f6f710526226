import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import clover
import clover.api
from clover.chat import Delta
from tests.scripted import HARMONY, QWEN, scripted


@pytest.fixture
def chat(run_clover: Callable, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Return a function that runs ``clover chat`` with the lines a user types."""

    def call(*lines: str, target: Path = tiny_target, new_tokens: int = 8, more: tuple[str, ...] = ()) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        flags = ["--max-new-tokens", new_tokens, "--temperature", 0]
        return run_clover("chat", "--tree", "plain", "--target", target, *flags, *more)

    return call


def say(target: Path, *turns: str) -> list[str]:
    conversation = clover.load(str(target), tree="plain").chat(max_new_tokens=8)
    return ["".join(conversation.say(turn)) for turn in turns]


def test_turns_build_on_each_other(chat: Callable, tiny_target: Path) -> None:
    code, out, err = chat("hello", "  again  ")
    assert (code, out.split("\n")[:-1]) == (0, "\n".join(say(tiny_target, "hello", "again")).split("\n"))
    assert err.count("tokens/s") == 2


def test_each_answer_is_compared_with_plain_decoding_and_stays_the_same(
    chat: Callable, tiny_target: Path
) -> None:
    compared = ("--compare", "--tree", "lookup:4")
    code, out, err = chat("hello", "again", more=compared)
    assert (code, out) == (0, "\n".join(say(tiny_target, "hello", "again")) + "\n")
    assert err.count("without drafting:") == err.count("times as fast") == 2


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
    assert "type /new to start over" in err


def test_question_that_is_too_long_does_not_end_the_chat(chat: Callable, tiny_target: Path) -> None:
    code, out, err = chat("x" * 300, "hello")
    assert (code, out) == (0, say(tiny_target, "hello")[0] + "\n")
    assert err.count("clover: error: ") == 1


def test_question_that_is_too_long_after_a_broken_off_answer_is_one_line(
    chat: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = clover.api.Conversation.reply

    def broken_off(self: clover.api.Conversation, *said: Any) -> Iterator[Delta]:
        for piece in whole(self, *said):
            yield piece
            raise KeyboardInterrupt

    monkeypatch.setattr("clover.api.Conversation.reply", broken_off)
    code, out, err = chat("hello", "x" * 300)
    assert (code, out.count(" …\n"), err.count("\n")) == (0, 1, 1)
    assert err.startswith("clover: error: ")


def test_chat_without_any_answer_fails(chat: Callable) -> None:
    code, out, err = chat("x" * 300)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_refusals_come_before_the_weights_are_read(
    chat: Callable,
    run_clover: Callable,
    tiny_target: Path,
    tiny_target_without_template: Path,
    tmp_path: Path,
) -> None:
    for name, target in (("chats", tiny_target), ("writes", tiny_target_without_template)):
        shutil.copytree(target, tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
    code, out, err = run_clover("chat", "--target", tmp_path / "chats", "--top-p", 2)
    assert (code, out, err.count("\n"), "top_p" in err) == (2, "", 1, True)
    code, out, err = chat("hello", target=tmp_path / "writes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no chat template" in err and "clover generate" in err


def test_interruption_stops_the_answer_alone(chat: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, *said: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clover.api.Conversation.reply", interrupted)
    assert chat("hello", "again") == (0, " …\n …\n", "")


def test_reasoning_is_no_part_of_the_answer(run_clover: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "<|channel|>analysis<|message|>be kind<|end|><|start|>assistant<|channel|>final<|message|>Hello!"
    monkeypatch.setattr("clover.api.load", lambda *_, **__: scripted(HARMONY, answer))
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    code, out, err = run_clover("chat", "--temperature", 0)
    assert (code, out, err.splitlines()[0]) == (0, "Hello!\n", "be kind")


def test_calls_are_shown_and_the_next_lines_are_their_results(
    run_clover: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(prompt: str) -> str:
        assert "qx-description" in prompt
        results = [part.split("<")[0] for part in prompt.split("<tool_response>")[1:]]
        one = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        return f"They are {', '.join(results)}." if results else f"I look.\n{one}\n{one}"

    monkeypatch.setattr("clover.api.load", lambda *_, **__: scripted(QWEN, answer))
    (tmp_path / "tools.json").write_text(
        json.dumps([{"type": "function", "function": {"name": "f", "description": "qx-description"}}])
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n20\n30\n"))
    code, out, _ = run_clover("chat", "--temperature", 0, "--tools", tmp_path / "tools.json")
    call = '→ f({"a": 1})\n'
    assert (code, out) == (0, f"I look.\n{call}{call}They are 20, 30.\n")
    (tmp_path / "tools.json").write_text('[{"name": "f"}]')
    code, out, err = run_clover("chat", "--tools", tmp_path / "tools.json")
    assert (code, out) == (2, "") and "is not a list of tools" in err


def test_tools_need_a_model_that_was_made_for_them(
    run_clover: Callable, tiny_target: Path, tmp_path: Path
) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
    code, out, err = run_clover(
        "chat", "--target", tiny_target, "--tree", "plain", "--tools", tmp_path / "tools.json"
    )
    assert (code, out) == (2, "") and "does not show the tool 'f'" in err
