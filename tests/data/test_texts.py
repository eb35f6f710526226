"""Training texts in files: tokenized when they are asked for, and what cannot be used is left out and named."""

import json
from pathlib import Path

import pytest

from clover.data import Batches, FileTexts, Record, texts
from clover.errors import UserError
from tests.data.tokenizers import ALTERNATES, CHATML, make_tokenizer

USER, ASSISTANT = {"role": "user", "content": "the cat?"}, {"role": "assistant", "content": "yes yes"}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    chats = [{"messages": [USER | {"content": f"cat {i}?"}, ASSISTANT]} for i in range(30)]
    plain = [{"text": f"hello world {i}"} for i in range(20)]
    return [write(tmp_path / "chat.jsonl", *chats), write(tmp_path / "plain.jsonl", *plain)]


def test_texts_of_all_files_have_numbers_and_come_in_order(files: list[Path]) -> None:
    tokenizer = make_tokenizer(CHATML)
    found = FileTexts(files, tokenizer)
    assert len(found) == 50
    record = found[30]
    assert record == Record(f"{files[1]}, line 1", completion="hello world 0")
    samples = list(found)
    assert tokenizer.decode(samples[30].tokens) == "<s>hello world 0</s>"
    assert tokenizer.decode(samples[29].tokens[samples[29].loss_mask]) == "yes yes<|im_end|>\n"
    assert [s.digest() for s in found.encode([record])] == [samples[30].digest()]


def test_texts_without_an_answer_may_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_TOGETHER", 4)
    asked = [{"prompt": f"cat {i}?"} for i in range(6)]
    path, tokenizer = tmp_path / "prompts.jsonl", make_tokenizer(CHATML)
    assert len(list(FileTexts([write(path, *asked, {"text": "hello"})], tokenizer))) == 1
    with pytest.raises(
        UserError, match="nothing can be learnt from the texts; the first: .*line 1: it teaches nothing"
    ):
        list(FileTexts([write(path, *asked)], tokenizer))


def test_a_batch_needs_only_its_own_texts(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = FileTexts.encode
    monkeypatch.setattr(FileTexts, "encode", lambda self, t: (encoded.extend(t), encode(self, t))[1])
    monkeypatch.setattr("clover.data.batching._BLOCK_TEXTS", 5)
    batches = Batches(FileTexts(files, make_tokenizer(CHATML)), 64, 64, seed=0)
    next(batches)
    assert len(encoded) <= 10
    place = batches.position
    following = [next(batches).tokens.tolist() for _ in range(40)]
    again = Batches(FileTexts(files, make_tokenizer(CHATML)), 64, 64, seed=0)
    again.position = place
    assert [next(again).tokens.tolist() for _ in range(40)] == following


def test_the_fingerprint_sees_files_and_options(files: list[Path]) -> None:
    def mark(template: str = CHATML, paths: list[Path] = files) -> str:
        return FileTexts(paths, make_tokenizer(template)).fingerprint

    first = mark()
    assert mark() == first
    changed = {mark(ALTERNATES), mark(paths=files[:1]), mark(paths=files[::-1])}
    write(files[1], *({"text": f"hello world {i}"} for i in range(1, 21)))
    assert first not in changed | {mark()}
    assert len(changed) == 3


def test_what_is_wrong_far_down_is_left_out_and_named(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = files[0].read_text().splitlines()
    refused = json.dumps({"messages": [USER, USER, ASSISTANT]})
    write(files[0], *lines[:10], "{broken", *lines[10:20], refused, *lines[20:])
    for checked in (10, 1000):  # whether it is found at first or later on
        monkeypatch.setattr(texts, "_CHECKED", checked)
        found = FileTexts(files, make_tokenizer(ALTERNATES))
        assert len(list(found)) == 50
        first, second = found.problems.values()
        assert "line 11 is not valid JSON" in first
        assert "line 22: the chat template" in second and second.endswith("roles must alternate")


def test_a_file_of_which_hardly_anything_can_be_used_is_refused(tmp_path: Path) -> None:
    good = [{"text": "hello"}] * 9
    write(tmp_path / "few.jsonl", *good, *["{broken"] * 991)
    with pytest.raises(
        UserError, match="few.jsonl: only 9 of the first 1,000 records .* line 10 is not valid"
    ):
        FileTexts([tmp_path / "few.jsonl"], make_tokenizer())
    write(tmp_path / "enough.jsonl", *good, {"text": "hello"}, *["{broken"] * 990)
    found = FileTexts([tmp_path / "enough.jsonl"], make_tokenizer())
    assert len(list(found)) == 10
    assert found.left_out.startswith("MORE THAN HALF CANNOT BE USED: left out 990 of 1,000 texts read")


def test_what_is_left_out_is_told_with_its_share(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_CHECKED", 1)
    write(files[1], {"text": "hello"}, "{broken", *({"text": "hello"} for _ in range(8)))
    found = FileTexts(files[1:], make_tokenizer())
    assert found.left_out == ""
    for row in (0, 1, 1, 2):
        found[row]
    assert found.left_out.startswith("left out 1 of 3 texts read; the first: ")
    assert "line 2 is not valid JSON" in found.left_out


def test_conversations_in_which_nobody_asks_are_left_out_and_counted(tmp_path: Path) -> None:
    asked = [{"from": "human", "value": "the cat?"}, {"from": "gpt", "value": "yes"}]
    path = write(tmp_path / "a.jsonl", *({"conversations": some} for some in (asked[1:], asked, asked[1:])))
    found = FileTexts([path], make_tokenizer(CHATML))
    assert len(list(found)) == 1
    assert f"left out 2 of 3 texts read; the first: {path}, line 1: conver" in found.left_out


def test_texts_of_another_tokenizer_are_left_out_and_refused_where_there_are_no_others(
    tmp_path: Path,
) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["strange"])
    some, none = (tmp_path / name for name in ("some.jsonl", "none.jsonl"))
    write(some, {"text": "the strange cat"}, {"text": "the cat"})
    write(none, {"text": "the strange cat"})
    known = len(tokenizer) - 1
    found = FileTexts([some], tokenizer, vocab_size=known)
    assert [tokenizer.decode(sample.tokens) for sample in found] == ["<s>the cat</s>"]
    (problem,) = found.problems.values()
    assert problem.startswith(f"{some}, line 1: the texts hold token {known}")
    with pytest.raises(UserError, match=f"none.jsonl, line 1: .* knows {known}: another tokenizer made them"):
        next(Batches(FileTexts([none], tokenizer, vocab_size=known), 64, 64, seed=0))


def test_a_block_is_bounded_by_texts_and_by_characters(files: list[Path]) -> None:
    found = FileTexts(files, make_tokenizer(CHATML))
    every = range(len(found))
    block, read = next(found.blocks(every, 7, 10**6))
    assert (len(block), read) == (7, 7)
    size = len("hello world 0")
    block, read = next(found.blocks(every[30:], 7, 2 * size + 1))
    assert (len(block), read) == (3, 3)  # the one that reaches the bound is in it
    block, read = next(found.blocks(every, 2, 10**6, lambda text: not text.messages))
    assert [text.completion for text in block] == ["hello world 0", "hello world 1"] and read == 32
    assert list(found.blocks([], 7, 7)) == []
    assert [read for _, read in found.blocks(every, 20, 10**6)] == [20, 20, 10]


def test_long_texts_are_read_a_few_at_a_time(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_SIZE_TOGETHER", 40)
    sizes: list[int] = []
    encode = texts.encode_records

    def watched(tokenizer: object, records: list[Record], *given: object) -> object:
        sizes.append(sum(record.size for record in records))
        return encode(tokenizer, records, *given)

    monkeypatch.setattr(texts, "encode_records", watched)
    assert len(list(FileTexts(files, make_tokenizer(CHATML)))) == 50
    assert max(sizes) < 60


def test_no_files_are_refused() -> None:
    with pytest.raises(UserError, match="there are no texts; name at least one file"):
        FileTexts([], make_tokenizer(CHATML))
