import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from clover.data.tasks import PROMPT_TOKENS, Task, choose_fitting, encode_task, read_tasks, spread
from clover.errors import UserError
from tests.data.tokenizers import ALTERNATES, CHATML, make_tokenizer

SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Shorten it."]},
    {"question_id": 121, "category": "coding", "turns": ["Sort a list.", "Faster."], "reference": ["…"]},
    {"question_id": 161, "category": "translation", "turns": ["Translate: Hallo"]},
    {"question_id": 241, "category": "summarization", "turns": ["Summarize: news"]},
    {"question_id": 321, "category": "qa", "turns": ["Who?"]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["How many?"]},
    {"question_id": 481, "category": "rag", "turns": ["Given the passage, what?"]},
]
HUMAN_EVAL = {
    "task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "entry_point": "add",
    "canonical_solution": "    return a + b\n", "test": "assert add(1, 2) == 3",
}  # fmt: skip


def write(directory: Path, name: str, *rows: Any) -> Path:
    path = directory / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(task: Task) -> str:
    return " / ".join(f"{message['role']}: {message['content']}" for message in task.messages)


def test_spec_bench_has_six_tasks_and_first_turns(tmp_path: Path) -> None:
    tasks = list(read_tasks([write(tmp_path, "spec_bench.jsonl", *SPEC_BENCH)]))
    assert [task.group for task in tasks] == [
        "mt_bench", "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag",
    ]  # fmt: skip
    assert asked(tasks[0]) == "user: Write a poem."
    assert tasks[2].where.endswith("spec_bench.jsonl, line 3")


@pytest.mark.parametrize(
    ("name", "row", "group", "messages", "text"),
    [
        ("gsm8k_test.jsonl", {"question": "2 + 2?", "answer": "#### 4"}, "gsm8k_test", "user: 2 + 2?", ""),
        ("humaneval.jsonl", HUMAN_EVAL, "humaneval", "", "def add(a, b):\n"),
        ("turns.jsonl", {"turns": ["Hello", "Bye"]}, "turns", "user: Hello", ""),
        ("own.jsonl", {"prompt": "Once", "completion": " upon"}, "own", "", "Once"),
        ("own.json", {"text": "a text"}, "own", "", "a text"),
        (
            "chat.jsonl",
            {"messages": [
                {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"},
            ]},
            "chat", "system: Be kind. / user: Hi", "",
        ),
        (
            "gpt.jsonl",
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]},
            "gpt", "user: Hi", "",
        ),
    ],
)  # fmt: skip
def test_formats_are_recognised_by_their_fields(
    tmp_path: Path, name: str, row: dict[str, Any], group: str, messages: str, text: str
) -> None:
    (task,) = read_tasks([write(tmp_path, name, row)])
    assert (task.group, asked(task), task.text) == (group, messages, text)


def test_text_files_have_a_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\n  two\n")
    assert [(task.group, task.text, task.where) for task in read_tasks([path])] == [
        ("lines", "one", f"{path}, line 1"),
        ("lines", "  two", f"{path}, line 3"),
    ]


def test_lists_of_prompts_and_development_prompts(tmp_path: Path) -> None:
    path = tmp_path / "held_out.json"
    path.write_text(json.dumps({"prompts": ["a", "b"], "development": ["c"]}, indent=1), encoding="utf-8")
    assert [(task.group, task.text) for task in read_tasks([path])] == [
        ("held_out", "a"), ("held_out", "b"), ("development", "c"),
    ]  # fmt: skip


def test_other_text_is_cut_into_prompts(tmp_path: Path) -> None:
    code, book, empty = tmp_path / "code.py", tmp_path / "book.md", tmp_path / "__init__.py"
    code.write_text("".join(f"line {i:04d} of a long text\n" for i in range(300)), encoding="utf-8")
    book.write_text("word " * 900, encoding="utf-8")
    empty.write_text("", encoding="utf-8")
    tasks = list(read_tasks([code, book, empty]))
    assert [task.group for task in tasks] == ["code"] * 3 + ["book"] * 2
    assert tasks[0].where == f"{code}, line 82" and tasks[0].text.endswith("line 0080 of a long text")
    assert len(tasks[4].text) == PROMPT_TOKENS * 12  # no more than a prompt can need
    tokenizer = make_tokenizer()
    whole = tokenizer("word " * 400, add_special_tokens=False)["input_ids"]
    prompt = encode_task(tasks[3], tokenizer)
    assert list(prompt.tokens) == [0, *whole[-PROMPT_TOKENS:]]  # after the token that opens every text


def test_a_short_text_is_cut_in_its_middle(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("short text", encoding="utf-8")
    assert [task.text for task in read_tasks([tmp_path / "note.md"])] == ["short"]


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, "0"), (2, "03"), (4, "0134"), (5, "01234"), (9, "01234")]
)
def test_a_limit_is_spread_over_groups(limit: int, expected: str) -> None:
    tasks = [Task(group, str(i)) for i, group in enumerate("aaabb")]
    assert "".join(task.where for task in spread(tasks, limit)) == expected


def test_questions_go_through_the_chat_template_and_plain_text_does_not(tmp_path: Path) -> None:
    files = [write(tmp_path, "mt.jsonl", SPEC_BENCH[0]), write(tmp_path, "code.jsonl", HUMAN_EVAL)]
    tokenizer = make_tokenizer(CHATML)
    question, code = (encode_task(task, tokenizer) for task in read_tasks(files))
    shown = "<|im_start|>user\nWrite a poem.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(question.tokens) == shown
    assert list(code.tokens) == tokenizer("def add(a, b):\n")["input_ids"]
    assert (question.group, code.group) == ("mt_bench", "code")


def test_without_a_template_a_question_is_asked_as_in_training(tmp_path: Path) -> None:
    row = {"messages": [{"role": "system", "content": "Rules"}, {"role": "user", "content": "Hi"}]}
    tokenizer = make_tokenizer(None)
    (task,) = read_tasks([write(tmp_path, "chat.jsonl", row)])
    plain = "Rules\n\nUser: Hi\n\nAssistant:"
    assert list(encode_task(task, tokenizer).tokens) == tokenizer(plain)["input_ids"]


def test_of_a_text_the_opening_is_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, "stories.jsonl", {"text": "the cat sat on the mat" * 99})
    tokenizer = make_tokenizer()
    (task,) = read_tasks([path])
    assert (
        len(task.text) == PROMPT_TOKENS * 12
    )  # no more than a prompt can need: a server would be sent all of it
    whole = tokenizer("the cat sat on the mat" * 99)["input_ids"]
    assert list(encode_task(task, tokenizer).tokens) == whole[: 1 + PROMPT_TOKENS]


def test_only_prompts_within_the_limit_are_tokenized(tmp_path: Path) -> None:
    refused = {"messages": [{"role": "user", "content": "a"}] * 1}
    odd = {"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "a"}]}
    path = write(tmp_path, "chat.jsonl", refused, odd)
    tasks, tokenizer = read_tasks([path]), make_tokenizer(ALTERNATES)
    assert len(choose_fitting(tasks, tokenizer, 64, 8, limit=1).prompts) == 1
    said = r"left out 1 of 2 prompts read; the first: .*chat\.jsonl, line 2: the chat template .* roles must alternate"
    with pytest.warns(UserWarning, match=said):
        assert len(choose_fitting(tasks, tokenizer, 64, 8, limit=2).prompts) == 1
    with pytest.raises(UserError, match="roles must alternate"):
        choose_fitting(tasks[1:], tokenizer, 64, 8, limit=2)


@pytest.mark.parametrize(
    ("room", "limit", "expected", "left_out"),
    [(4, 2, "02", 0), (1, 2, "13", 2), (1, 1, "1", 2), (4, 9, "0123", 0), (1, 9, "13", 2)],
)
def test_others_take_the_place_of_prompts_that_are_too_long(
    room: int, limit: int, expected: str, left_out: int
) -> None:
    tasks = [Task("a", str(i), text="#" * tokens) for i, tokens in enumerate((4, 1, 3, 1))]
    tokenizer = make_tokenizer(adds_bos=False)
    chosen = choose_fitting(tasks, tokenizer, longest_run=room + 8, max_new_tokens=8, limit=limit)
    assert ("".join(one.where for one in chosen.prompts), chosen.left_out) == (expected, left_out)


def test_that_no_prompt_fits_is_said() -> None:
    tasks = [Task("a", str(i), text="cat sat on the mat") for i in range(3)]
    with pytest.raises(UserError, match=r"no prompt leaves room for 8 new tokens \(tried: 3\)"):
        choose_fitting(tasks, make_tokenizer(), longest_run=9, max_new_tokens=8, limit=1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "holds no records"),
        ("a.jsonl", b"{", "is not one JSON object per line"),
        ("a.jsonl", b"[1]\n", "must be a JSON object"),
        ("a.jsonl", b'{"answer": "x"}\n', "no field that can be used"),
        ("a.jsonl", b'{"turns": []}\n', "turns must be a list that is not empty"),
        ("a.jsonl", b'{"turns": [7]}\n', "must be text, not a number"),
        ("a.jsonl", b'{"turns": ["  "]}\n', "the user says nothing"),
        ("a.jsonl", b'{"turns": ["x"], "category": 7}\n', "category must be a short name"),
        ("a.jsonl", b'{"turns": ["x"], "category": "a\\u001b[2J"}\n', "category must be a short name"),
        ("a.jsonl", b'{"messages": [{"role": "assistant", "content": "x"}]}\n', "the user says nothing"),
        ("a.jsonl", b'{"prompt": " "}\n', "the prompt is empty"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "not valid JSON"),
        ("a.jsonl", b'{"a":' * 100_000, "not valid JSON"),
        ("a.txt", b" \n\n", "holds no prompts"),
        ("a.txt", b"\xff\xfe", "not valid UTF-8"),
        ("a.bin", b"a\0b", "zero bytes"),
        ("a.py", b"\n", "no text that could be cut"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        list(read_tasks([path]))
    assert "\n" not in str(error.value)


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    for name in ("missing.jsonl", "missing.txt", "missing.py"):
        with pytest.raises(UserError, match=rf"cannot read .*{name}: no such file"):
            list(read_tasks([tmp_path / name]))
    with pytest.raises(UserError, match="is a directory"):
        list(read_tasks([tmp_path]))


@pytest.mark.parametrize(
    ("added", "opening"), [("<s> $A", [0]), ("<s> $A </s>", [0]), ("$A </s>", []), ("$A", [])]
)
def test_what_stands_before_every_text_comes_first_and_what_stands_behind_it_does_not(
    added: str, opening: list[int]
) -> None:
    tokenizer = make_tokenizer()
    bare = tokenizer("the cat sat", add_special_tokens=False)["input_ids"]
    special = [("<s>", 0), ("</s>", 1)]
    inner = tokenizer.backend_tokenizer
    inner.post_processor = TemplateProcessing(single=added, special_tokens=special)
    assert encode_task(Task("a", "here", text="the cat sat"), tokenizer).tokens == (*opening, *bare)
    assert encode_task(Task("a", "here", text="the cat sat", window=(0, 2)), tokenizer).tokens == (
        *opening,
        *bare[:2],
    )


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="here: the tokenizer gives no token"):
        encode_task(Task("a", "here", text="x", window=(0, 0)), make_tokenizer(adds_bos=False))


def test_records_that_cannot_be_used_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, "p.jsonl", {"prompt": "the cat"}, {"conversations": []}, {"prompt": "hello"})
    with pytest.warns(
        UserWarning, match=r"left out 1 of 3 prompts read; the first: .*p\.jsonl, line 2: conversations"
    ):
        assert [task.text for task in read_tasks([path])] == ["the cat", "hello"]
    path = write(tmp_path, "lists.jsonl", {"prompts": ["the cat", " ", 5], "development": "no list"})
    with pytest.warns(
        UserWarning, match=r"left out 3 of 4 .* line 1: prompts, text 2 must be a text that is not"
    ):
        assert [task.text for task in read_tasks([path])] == ["the cat"]
    path = write(tmp_path, "q.jsonl", {"prompt": "the cat"}, {"conversations": []}, {"body": "hello"})
    with pytest.warns(UserWarning, match=r"MORE THAN HALF CANNOT BE USED: left out 2 of 3 prompts read"):
        assert len(read_tasks([path])) == 1


def test_a_prompt_has_one_bos() -> None:
    tokenizer = make_tokenizer()
    (one, other) = (encode_task(Task("a", "x", text=text), tokenizer) for text in ("<s>the cat", "the cat"))
    assert one.tokens == other.tokens and one.tokens.count(0) == 1


def test_prompts_with_pictures_are_left_out_and_counted(tmp_path: Path) -> None:
    shown = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
    rows = [{"messages": [shown]}, {"turns": ["Why?"], "image": "x.png"}, {"turns": ["Why?"]}]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(
        UserWarning, match="left out 2 of 3 prompts read; the first: .*line 1.*a part of type image"
    ):
        (task,) = read_tasks([path])
    assert task.where.endswith("line 3")
