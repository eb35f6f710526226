import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clover.data import FileTexts, Record, Sample, encode_records
from clover.data.chat import encode_prompt
from clover.data.formats import parse_record
from clover.errors import UserError
from clover.templates import TemplateRefused, encode_text
from tests.data import tokenizers
from tests.data.tokenizers import make_tokenizer

QUESTION, ANSWER = {"role": "user", "content": "the cat?"}, {"role": "assistant", "content": "hello é 世"}
AGAIN, LAST = {"role": "user", "content": "and"}, {"role": "assistant", "content": " yes"}
CONVERSATION = Record("here", messages=(QUESTION, ANSWER, AGAIN, LAST))


def learnt(sample: Sample, tokenizer: Any) -> list[str]:
    """The texts of the runs of learnt tokens."""
    runs: list[list[int]] = [[]]
    for token, one in zip(sample.tokens.tolist(), sample.loss_mask.tolist(), strict=True):
        if one:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def test_marked_templates_say_themselves_what_is_learnt() -> None:
    tokenizer = make_tokenizer(tokenizers.MARKED)
    (sample,) = encode_records(tokenizer, [CONVERSATION])
    assert learnt(sample, tokenizer) == ["hello é 世</s>", " yes</s>"]
    assert sample.tokens.tolist().count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("stop", ["<|im_end|>", None])
def test_unmarked_templates_are_compared_turn_by_turn(stop: str | None) -> None:
    tokenizer = make_tokenizer(tokenizers.CHATML)
    stops = [tokenizer.convert_tokens_to_ids(stop)] if stop else []
    (sample,) = encode_records(tokenizer, [CONVERSATION], stops)
    end = "<|im_end|>" if stop else "<|im_end|>\n"
    assert learnt(sample, tokenizer) == ["hello é 世" + end, " yes" + end]
    whole = tokenizer.apply_chat_template(list(CONVERSATION.messages), return_dict=False)
    assert sample.tokens.tolist() == whole


def test_the_prompt_is_the_beginning_of_the_sample() -> None:
    for template in (tokenizers.MARKED, tokenizers.CHATML, None):
        tokenizer = make_tokenizer(template)
        (sample,) = encode_records(tokenizer, [Record("x", messages=(QUESTION, ANSWER))])
        prompt = encode_prompt(tokenizer, [QUESTION])
        assert sample.tokens[: len(prompt)].tolist() == prompt
        assert sample.loss_mask[len(prompt) - 1 : len(prompt) + 1].tolist() == [False, True]


@pytest.mark.parametrize("template", [tokenizers.CHATML, tokenizers.STRIPS_THINKING, None])
@pytest.mark.parametrize(("name", "off"), [("weight", 0), ("weight", 0.0), ("train", False), ("loss", False)])
def test_answers_of_weight_0_are_context(template: str | None, name: str, off: float) -> None:
    """With a template that renders turn by turn, and with one that rewrites them; also as people write 0 and 1."""
    tokenizer = make_tokenizer(template)
    messages = [QUESTION | {name: off}, ANSWER | {name: off}, AGAIN, LAST | {name: type(off)(1)}]
    samples = encode_records(tokenizer, [parse_record({"messages": messages}, "x")])
    (last,) = [run for sample in samples for run in learnt(sample, tokenizer)]
    assert "yes" in last and "hello" not in last
    assert all("hello é 世" in tokenizer.decode(sample.tokens) for sample in samples)
    plain = encode_records(tokenizer, [CONVERSATION])
    assert samples[-1].tokens.tolist() == plain[-1].tokens.tolist(), "a weight is no part of the text"


def test_records_with_other_weights_or_none_above_0_are_left_out(tmp_path: Path) -> None:
    weights = [1, 0.5, 0, "0", 1]
    records = [{"messages": [QUESTION, ANSWER | {"weight": weight}]} for weight in weights]
    (tmp_path / "w.jsonl").write_text("\n".join(json.dumps(one) for one in records))
    texts = FileTexts([tmp_path / "w.jsonl"], make_tokenizer(tokenizers.CHATML))
    assert len(list(texts)) == 2
    lines = sorted(texts.problems.values())
    assert "line 2: messages, turn 2: weight is 0.5; an answer is learnt (1) or not (0)" in lines[0]
    assert "line 3: it teaches nothing: no answer has a weight above 0" in lines[1]
    assert "line 4: messages, turn 2: weight is '0'; an answer" in lines[2]


def test_templates_that_rewrite_earlier_turns_give_a_sample_per_turn() -> None:
    tokenizer = make_tokenizer(tokenizers.STRIPS_THINKING)
    thinking = {"role": "assistant", "content": "<think>sat</think>no"}
    samples = encode_records(tokenizer, [Record("x", messages=(QUESTION, thinking, AGAIN, LAST))])
    assert [learnt(sample, tokenizer) for sample in samples] == [
        ["<think>sat</think>no<|im_end|>\n"],
        ["<think></think> yes<|im_end|>\n"],
    ]
    assert "sat" not in tokenizer.decode(samples[1].tokens)


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ("hello", "hello</s>"),
        ("<think>\nsat\n</think>\n\nhello", "sat\n</think>\n\nhello</s>"),
        ("sat\n</think>\n\nhello", "sat\n</think>\n\nhello</s>"),  # as the target continues the opening
    ],
)
def test_an_answer_stands_after_the_prompt_that_is_used(answer: str, written: str) -> None:
    tokenizer = make_tokenizer(tokenizers.OPENS_THINKING)
    said = (QUESTION, {"role": "assistant", "content": answer}, AGAIN, LAST)
    for sample, place, text in zip(
        encode_records(tokenizer, [Record("x", messages=said)]), (1, 3), (written, " yes</s>"), strict=True
    ):
        prompt = encode_prompt(tokenizer, said[:place])
        assert tokenizer.decode(prompt).endswith("<A><think>\n")
        assert sample.tokens[: len(prompt)].tolist() == prompt
        assert learnt(sample, tokenizer) == [text] and not sample.loss_mask[: len(prompt)].any()


def test_thinking_that_the_template_does_not_show_is_refused() -> None:
    apart = {"role": "assistant", "reasoning_content": "sat", "content": "hello"}
    for template in (tokenizers.OPENS_THINKING, tokenizers.CHATML):
        with pytest.raises(TemplateRefused, match="does not show the thinking"):
            encode_records(make_tokenizer(template), [Record("x", messages=(QUESTION, apart))])
    opens = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
    )
    (sample,) = encode_records(make_tokenizer(opens), [Record("x", messages=(QUESTION, apart))])
    assert learnt(sample, make_tokenizer(opens)) == ["sat</think>hello"]
    inside = {"role": "assistant", "content": "<think>sat</think>hello"}
    with pytest.raises(TemplateRefused, match="puts thinking of its own before"):
        encode_records(make_tokenizer(opens), [Record("x", messages=(QUESTION, inside))])


def opened_by(opening: str, shown_after: str = "", header: str = "assistant") -> str:
    """A template that opens answers so, and shows finished ones after other words."""
    return (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        f"{shown_after}{{{{ m.content.split('</think>')[-1] | trim }}}}</s>{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}<{header}>{opening}{{% endif %}}"
    )


@pytest.mark.parametrize(
    ("template", "answer", "written"),
    [  # two tags have their first letter in common, and the opening may have closed the thinking
        (opened_by("<think>", "</think>"), "hello", "</think>hello</s>"),
        (opened_by("<think>", "</think>"), "<think>sat</think>hello", "sat</think>hello</s>"),
        (opened_by("</think>", "</think>"), "<think>sat</think>hello", "hello</s>"),
        (opened_by("<think></think>"), "<think>sat</think>hello", "hello</s>"),
    ],
)
def test_tags_of_thinking_are_learnt_whole_and_once(template: str, answer: str, written: str) -> None:
    tokenizer = make_tokenizer(template)
    said = (QUESTION, {"role": "assistant", "content": answer})
    (sample,) = encode_records(tokenizer, [Record("x", messages=said)])
    assert learnt(sample, tokenizer) == [written]


def test_an_answer_that_is_opened_otherwise_than_it_is_shown_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="opens an answer by '<a>', and shows one after '<assistant>'"):
        encode_records(make_tokenizer(opened_by("", header="a")), [Record("x", messages=(QUESTION, LAST))])


TOOLS = (
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris", "of_another_tool": None}])
def test_calls_are_learnt_as_the_target_writes_them(arguments: Any) -> None:
    tokenizer = make_tokenizer(TOOLS)
    call = {"name": "city", "arguments": arguments}
    said = {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
    record = {"messages": [QUESTION, said], "tools": [{"name": "city"}], "system": "Be brief."}
    (sample,) = encode_records(tokenizer, [parse_record(record, "x")])
    shown = '[{"name": "city"}]<system>Be brief.</s><user>the cat?</s><assistant>{"city": "Paris"}</s>'
    assert tokenizer.decode(sample.tokens) == shown
    assert learnt(sample, tokenizer) == ['{"city": "Paris"}</s>']


@pytest.mark.parametrize("arguments", ['{"city": "\\ud83d"}', '{"far": NaN}', "[1]", '"{}"'])
def test_arguments_that_no_model_writes_are_left_out(arguments: str) -> None:
    tokenizer = make_tokenizer(TOOLS)
    said = {"role": "assistant", "tool_calls": [{"function": {"name": "city", "arguments": arguments}}]}
    with pytest.raises(UserError, match="the arguments of the tool call 'city' are not a JSON object"):
        encode_records(tokenizer, [parse_record({"messages": [QUESTION, said]}, "x")])


def test_a_plain_text_has_one_bos_and_is_learnt_in_the_same_places() -> None:
    tokenizer = make_tokenizer()
    for spelled, given in (
        (Record("x", completion="<s>the cat"), Record("x", completion="the cat")),
        (
            Record("x", prompt="<s>the cat", completion=" sat"),
            Record("x", prompt="the cat", completion=" sat"),
        ),
    ):
        (one,), (other,) = (encode_records(tokenizer, [record]) for record in (spelled, given))
        assert one.tokens.tolist() == other.tokens.tolist() and one.tokens.tolist().count(0) == 1
        assert one.loss_mask.tolist() == other.loss_mask.tolist()


def test_a_template_in_which_answers_cannot_be_found_is_named() -> None:
    tokenizer = make_tokenizer(tokenizers.COUNTS_TURNS)
    tokenizer.name_or_path = "org/model"
    with pytest.raises(UserError, match=r"^the chat template of org/model \(\"\{\{ messages"):
        encode_records(tokenizer, [CONVERSATION])


def test_without_a_template_the_plain_format_is_used() -> None:
    tokenizer = make_tokenizer()
    system = {"role": "system", "content": "the mat"}
    (sample,) = encode_records(tokenizer, [Record("x", messages=(system, QUESTION, ANSWER))])
    text = "<s>the mat\n\nUser: the cat?\n\nAssistant: hello é 世</s>\n\n"
    assert tokenizer.decode(sample.tokens) == text
    assert learnt(sample, tokenizer) == [" hello é 世</s>"]


@pytest.mark.parametrize("adds_bos", [True, False])
def test_all_of_plain_text_is_learnt_and_ends_on_the_end_of_text(adds_bos: bool) -> None:
    tokenizer = make_tokenizer(tokenizers.CHATML, adds_bos)
    (sample,) = encode_records(tokenizer, [Record("x", completion="the cat")])
    assert tokenizer.decode(sample.tokens) == "<s>" * adds_bos + "the cat</s>"
    assert sample.loss_mask.all()
    (sample,) = encode_records(tokenizer, [Record("x", completion="the cat</s>")])
    assert sample.tokens.tolist().count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize("text", ["the cat", "the cat</s>"])
def test_a_text_has_one_eos_where_the_tokenizer_adds_one(text: str) -> None:
    tokenizer = make_tokenizer(adds_eos=True)
    for record in (
        Record("x", completion=text),
        Record("x", prompt="the", completion=text.removeprefix("the")),
    ):
        (sample,) = encode_records(tokenizer, [record])
        assert tokenizer.decode(sample.tokens) == "<s>the cat</s>" and bool(sample.loss_mask[-1])
    ends = "</s>" if text.endswith("</s>") else ""
    assert tokenizer.decode(encode_text(tokenizer, text)) == "<s>the cat" + ends


def test_only_the_completion_of_a_prompt_is_learnt() -> None:
    tokenizer = make_tokenizer()
    (sample,) = encode_records(tokenizer, [Record("x", prompt="the cat", completion=" sat")])
    assert learnt(sample, tokenizer) == [" sat</s>"]
    (sample,) = encode_records(tokenizer, [Record("x", prompt="the cat")])
    assert learnt(sample, tokenizer) == []


@pytest.mark.parametrize("template", [tokenizers.CHATML, None])
def test_spaces_are_learnt_where_the_tokenizer_trims_them(template: str | None) -> None:
    chat = Record("x", messages=(QUESTION, {"role": "assistant", "content": "   hello   é \n   yes  "}))
    records = [
        chat,
        Record("x", prompt="the cat  ", completion="  sat   on   "),
        Record("x", completion="  the  "),
    ]
    trimmed = encode_records(make_tokenizer(template, trims=True), records)
    expected = encode_records(make_tokenizer(template), records)
    for found, wanted in zip(trimmed, expected):
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.loss_mask.tolist() == wanted.loss_mask.tolist()


def test_much_text_is_tokenized_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(tokenizers.STRIPS_THINKING)
    records = [
        CONVERSATION,
        Record("x", completion="the cat sat"),
        CONVERSATION,
        Record("x", completion="no"),
    ]
    whole = [sample.digest() for sample in encode_records(tokenizer, records)]
    monkeypatch.setattr("clover.data.chat._TOGETHER", 60)
    sizes: list[int] = []
    encode = type(tokenizer).__call__

    def watched(self: Any, texts: list[str], **options: Any) -> Any:
        sizes.append(sum(map(len, texts)))
        return encode(self, texts, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", watched)
    assert [sample.digest() for sample in encode_records(tokenizer, records)] == whole
    assert len(sizes) > 3 and max(sizes) < 60 + 120  # one text beyond the bound at most


def test_a_conversation_of_very_many_turns_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clover.data.chat._MAX_TURNS", 3)
    tokenizer, refused = make_tokenizer(tokenizers.CHATML), []
    short = Record("x", messages=(QUESTION, ANSWER))
    samples = encode_records(tokenizer, [CONVERSATION, short], refused=lambda *given: refused.append(given))
    assert len(samples) == 1
    ((record, error),) = refused
    assert record is CONVERSATION and str(error) == "a conversation of 4 turns; cut it to 3"
    with pytest.raises(UserError, match="of 4 turns"):
        encode_records(tokenizer, [CONVERSATION])


def test_records_with_tokens_that_the_target_does_not_know_are_left_out() -> None:
    tokenizer, refused = make_tokenizer(tokenizers.STRIPS_THINKING), []
    records = [CONVERSATION, Record("x", completion="hello"), Record("x", completion="the")]
    samples = encode_records(tokenizer, records[1:])
    known = max(int(sample.tokens.max()) for sample in samples[1:]) + 1
    assert int(samples[0].tokens.max()) >= known
    found = encode_records(tokenizer, records, (), lambda *given: refused.append(given), known)
    assert [sample.digest() for sample in found] == [samples[1].digest()]
    assert [record for record, _ in refused] == records[:2]
    assert all("another tokenizer made them" in str(error) for _, error in refused)
    with pytest.raises(UserError, match="another tokenizer made them"):
        encode_records(tokenizer, records, vocab_size=known)


def test_tokenizers_without_offsets_are_refused() -> None:
    slow: Any = SimpleNamespace(is_fast=False)
    with pytest.raises(UserError, match="take a fast one"):
        encode_records(slow, [CONVERSATION])


def write(path: Path, *messages: Any) -> Path:
    path.write_text("".join(json.dumps({"messages": list(conversation)}) + "\n" for conversation in messages))
    return path


def test_conversations_that_the_template_refuses_are_counted(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tokenizers.ALTERNATES)
    good, bad = (QUESTION, ANSWER), (QUESTION, QUESTION, ANSWER)
    texts = FileTexts([write(tmp_path / "a.jsonl", good, bad, good)], tokenizer)
    assert len(list(texts)) == 2
    (problem,) = texts.problems.values()
    assert "line 2: the chat template" in problem and problem.endswith("roles must alternate")
    with pytest.raises(UserError, match=r"line 1: the chat template .* refuses it: roles must alternate"):
        list(FileTexts([write(tmp_path / "b.jsonl", bad)], tokenizer))
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        encode_prompt(tokenizer, bad)


def test_records_with_tools_that_the_template_does_not_show_are_left_out_and_counted(tmp_path: Path) -> None:
    """What the model would answer without having seen them is not what the record shows."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    good, tools = {"messages": [QUESTION, ANSWER]}, [{"type": "function", "function": {"name": "f"}}]
    rows = [good, good | {"tools": tools}, {"messages": [QUESTION, call]}, good | {"tools": []}, good]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = FileTexts([tmp_path / "t.jsonl"], make_tokenizer(tokenizers.CHATML))
    assert len(list(texts)) == 3
    offered, called = texts.problems.values()
    assert "t.jsonl, line 2: the chat template" in offered and "does not show the tool 'f'" in offered
    assert "t.jsonl, line 3: the chat template" in called and "does not show tool calls" in called
    assert texts.left_out.startswith("left out 2 of 5 texts read; the first: ") and "line 2" in texts.left_out


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ 2.0 ** 5000 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[9].content.x }}",
    ],
)
def test_whatever_a_template_raises_it_refuses_the_conversation(template: str) -> None:
    with pytest.raises(TemplateRefused, match="refuses it"):
        encode_prompt(make_tokenizer(template), [QUESTION])


@pytest.mark.parametrize("template", [5, {"default": 5}])
def test_a_template_that_is_no_text_is_named(template: Any) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="is not text: 5"):
        encode_prompt(tokenizer, [QUESTION])


def test_records_that_teach_nothing_are_left_out_and_say_why(tmp_path: Path) -> None:
    good = {"messages": [QUESTION, ANSWER]}
    rows = [
        ({"messages": [QUESTION]}, "its roles are user; none is the assistant"),
        ({"messages": [QUESTION, {"role": "Seller", "content": "no"}]}, "its roles are user, Seller"),
        ({"prompt": "the cat"}, "it has a prompt and no completion"),
        ({"tokens": [1, 2, 3], "loss_mask": [0, 0, 0]}, "no token is marked to be learnt"),
        ({"tokens": [1, 2], "loss_mask": [1, 1]}, "it is too short"),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [good, *(row for row, _ in rows)]))
    texts = FileTexts([path], make_tokenizer(tokenizers.CHATML))
    assert len(list(texts)) == 1
    for number, (problem, (_, reason)) in enumerate(zip(texts.problems.values(), rows, strict=True), start=2):
        assert problem.startswith(f"{path}, line {number}: it teaches nothing: {reason}")
    assert texts.left_out.startswith("MORE THAN HALF CANNOT BE USED: left out 5 of 6 texts read")
    silent = make_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    silent.chat_template += "{% if add_generation_prompt %} A:{% endif %}"
    with pytest.raises(UserError, match=r"nothing can be learnt from the texts; .*--regenerate"):
        list(FileTexts([write(path, [QUESTION])], silent))
