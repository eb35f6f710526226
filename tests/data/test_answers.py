"""The rules by which texts grow, without a model: the test answers."""

from dataclasses import replace

import pytest

from clover.data import Record
from clover.data.answers import Ended, GrowingText, Growth
from clover.data.formats import Message
from clover.errors import UserError
from tests.data.tokenizers import CHATML, MARKED, STRIPS_THINKING, make_tokenizer

END = 3  # <|im_end|>


def growth(template: str | None = CHATML, **changes: object) -> Growth:
    rules = {"max_length": 200, "max_new_tokens": None, "prompt_tokens": 4} | changes
    return Growth(make_tokenizer(template), (END,), 340, **rules)  # type: ignore[arg-type]


def grow(text: GrowingText, rules: Growth, *answers: str) -> tuple[list[str], Ended]:
    """Answer each request in turn; return what stood before each answer, and what the text became."""
    asked, send, left = [], None, iter(answers)
    while True:
        try:
            ask = text.send(send)  # type: ignore[arg-type]
        except StopIteration as stop:
            return asked, stop.value
        asked.append(rules.tokenizer.decode(ask.tokens))
        send = rules.tokenizer(next(left), add_special_tokens=False)["input_ids"]


def chat(*turns: str) -> Record:
    """A conversation of turns such as "u the cat?"; u is the user, a the assistant, s the system, t a tool."""
    roles = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return Record("x", messages=tuple(Message(role=roles[t[0]], content=t[2:]) for t in turns))


@pytest.mark.parametrize(
    ("turns", "answered"),
    [
        (["u one", "u two"], ["u one", "a yes", "u two", "a yes"]),
        (["u one", "a old"], ["u one", "a yes"]),
        (["s be good", "u one", "a old", "u two"], ["s be good", "u one", "a yes", "u two", "a yes"]),
        (["a hello", "u one"], ["a hello", "u one", "a yes"]),
        (["u one", "a old", "s bye"], ["u one", "a yes"]),
        (["u one", "a call", "t found", "a old"], ["u one", "a yes"]),  # one answer is missing
    ],
)
def test_every_answer_is_replaced_and_every_question_answered(turns: list[str], answered: list[str]) -> None:
    rules = growth()
    (text,) = rules.texts(chat(*turns))
    _, ended = grow(text, rules, *["yes<|im_end|>"] * 9)
    assert ended.fields == {"messages": list(chat(*answered).messages)} and not ended.cut
    assert ended.missing == any(turn.startswith("t") for turn in turns)


def test_tools_are_shown_before_an_answer_and_kept_with_it() -> None:
    rules, tools = growth("{{ tools | tojson if tools }}" + CHATML), ({"name": "look"},)
    (text,) = rules.texts(replace(chat("u one"), tools=tools))
    asked, ended = grow(text, rules, "yes<|im_end|>")
    assert asked == ['[{"name": "look"}]<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n']
    assert ended.fields["tools"] == tools


def test_answers_are_appended_to_one_sample_where_the_template_only_appends() -> None:
    rules = growth()
    (text,) = rules.texts(chat("u one", "u two"))
    asked, ended = grow(text, rules, "yes<|im_end|>", "no<|im_end|>")
    (sample,) = ended.samples
    learnt = [rules.tokenizer.decode(sample.tokens[start:end]) for start, end in sample.learnt]
    assert learnt == ["yes<|im_end|>", "no<|im_end|>"]
    assert asked[1] == asked[0] + "yes<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert rules.tokenizer.decode(sample.tokens) == asked[1] + "no<|im_end|>"


def test_answers_are_samples_of_their_own_where_the_template_rewrites_earlier_turns() -> None:
    rules = growth(STRIPS_THINKING)
    (text,) = rules.texts(chat("u one", "u two"))
    asked, ended = grow(text, rules, "<think>well</think>yes<|im_end|>", "no<|im_end|>")
    assert "well" not in asked[1] and "yes<|im_end|>" in asked[1]
    texts = [rules.tokenizer.decode(sample.tokens) for sample in ended.samples]
    assert texts == [asked[0] + "<think>well</think>yes<|im_end|>", asked[1] + "no<|im_end|>"]
    assert [len(sample.learnt) for sample in ended.samples] == [1, 1]


def test_an_answer_that_was_cut_off_is_the_last() -> None:
    rules = growth()
    (text,) = rules.texts(chat("u one", "u two"))
    _, ended = grow(text, rules, "yes")
    assert ended.cut and ended.fields["messages"][-1] == {"role": "assistant", "content": "yes"}
    assert ended.missing == 1


def test_a_conversation_ends_before_the_first_turn_that_does_not_fit() -> None:
    rules = growth(max_length=60)
    (text,) = rules.texts(chat("u one", "u " + "the cat sat " * 30, "u two"))
    asked, ended = grow(text, rules, "yes<|im_end|>")
    assert len(asked) == 1 and len(ended.fields["messages"]) == 2 and not ended.cut
    assert ended.missing == 2


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (chat("s be good"), "nothing that the assistant could answer"),
        (chat("u " + "xyz" * 90), "at most 198 fit"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(record: Record, reason: str) -> None:
    (text,) = growth().texts(record)
    with pytest.raises(UserError, match=f"x: .*{reason}"):
        next(text)


def test_what_was_answered_is_kept_where_the_next_answer_is_empty() -> None:
    rules = growth()
    (text,) = rules.texts(chat("u one", "u two"))
    _, ended = grow(text, rules, "yes<|im_end|>", "")
    assert ended.fields == {"messages": list(chat("u one", "a yes").messages)} and not ended.cut
    assert [len(sample.learnt) for sample in ended.samples] == [1]


@pytest.mark.parametrize("record", [chat("u one"), Record("x", prompt="the cat")])
def test_a_text_without_any_answer_is_refused(record: Record) -> None:
    rules = growth()
    (text,) = rules.texts(record)
    with pytest.raises(UserError, match="x: nothing was written"):
        grow(text, rules, "")


def test_the_space_for_an_answer_is_what_the_options_leave() -> None:
    for changes, room in (({}, None), ({"max_new_tokens": 5}, 5)):
        (text,) = growth(MARKED, **changes).texts(chat("u one"))
        ask = next(text)
        assert ask.max_new_tokens == (room or 200 - len(ask.tokens))


def test_prompts_of_the_target_are_stripped_and_different() -> None:
    rules, seen = growth(), set[str]()
    asked, ended = grow(rules.with_prompt(1, seen), rules, " the cat? <|im_end|>", "yes<|im_end|>")
    assert asked[0] == "<|im_start|>user\n" and seen == {"the cat?"}
    assert [m["content"] for m in ended.fields["messages"]] == ["the cat?", "yes"]
    for turn in ("the cat?<|im_end|>", "<|im_end|>", "the mat"):
        with pytest.raises(UserError, match="prompt 2 of the target: empty, too long, or written before"):
            grow(rules.with_prompt(2, seen), rules, turn)
