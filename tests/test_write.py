"""Texts that the target writes: what is kept, what is written, and continuing after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from clover.cli.texts import run_writer
from clover.data import FileTexts, Record, Sample, encode_records
from clover.data.chat import vocabulary_hash
from clover.data.formats import WrittenSample
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.measure.report.progress import Progress
from clover.target import TargetModel
from clover.write import WriteConfig, Writer, writer_hash
from tests.data.tokenizers import CHATML, STRIPS_THINKING
from tests.engine.test_scheduler import Watched
from tests.families import tiny_model
from tests.tiny import save_tiny_pair

CONFIG = WriteConfig(max_length=24, prompt_tokens=4, temperatures=(0.0,), batch_size=2)
CHAT = Record(
    "x", messages=tuple({"role": "user", "content": text} for text in ("the cat?", "and the mat?", "yes?"))
)


@pytest.fixture
def target(tmp_path: Path) -> TargetModel:
    """A target that never ends a text."""
    return load(tmp_path, CHATML, eos=None)


def load(folder: Path, template: str | None, eos: int | None) -> TargetModel:
    target = TargetModel.load(save_tiny_pair(folder / "pair", template)[0])
    target.model.generation_config.eos_token_id = target.config.eos_token_id = eos
    return target


def ends_after(target: TargetModel, record: Record, tokens: int) -> None:
    """Let the target end on the token that it writes at this place of its first answer."""
    given = prompt(target, list(record.messages[:1]))
    target.model.generation_config.eos_token_id = continuation(target, given, 60)[tokens]


def prompt(target: TargetModel, messages: list[dict[str, str]]) -> list[int]:
    tokenizer = target.require_tokenizer()
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def continuation(target: TargetModel, prompt: list[int], count: int) -> list[int]:
    events = Engine(target).run([Request(tuple(prompt), count)])
    return [token for event in events for token in event.tokens]


def samples_of(target: TargetModel, path: Path) -> list[Sample]:
    """What is learnt from a file, text by text."""
    return list(FileTexts([path], target.require_tokenizer(), target.eos_token_ids, target.vocab_size))


def plain_texts(number: int) -> list[Record]:
    return [
        Record(f"x{i}", completion=f"the cat {i} sat on the mat and the answer is yes") for i in range(number)
    ]


def indices(path: Path) -> list[int]:
    return [json.loads(line)["clover"]["index"] for line in path.read_text().splitlines()]


def test_plain_text_keeps_its_opening(target: TargetModel, tmp_path: Path) -> None:
    (record,) = plain_texts(1)
    assert Writer(target, CONFIG, tmp_path / "w.jsonl").write([record]) == 20
    (new,) = samples_of(target, tmp_path / "w.jsonl")
    (whole,) = encode_records(target.require_tokenizer(), [record])
    opening = whole.tokens.tolist()[:4]
    assert new.tokens.tolist() == [*opening, *continuation(target, opening, 20)]
    assert new.loss_mask.tolist() == [False] * 4 + [True] * 20


def test_a_prompt_is_kept_whole(target: TargetModel, tmp_path: Path) -> None:
    Writer(target, CONFIG, tmp_path / "w.jsonl").write([Record("x", prompt="the cat", completion=" is away")])
    (line,) = map(json.loads, (tmp_path / "w.jsonl").read_text().splitlines())
    (new,) = samples_of(target, tmp_path / "w.jsonl")
    given = target.require_tokenizer()("the cat")["input_ids"]
    assert line["prompt"] == "the cat" and line["clover"]["cut"]
    assert new.tokens.tolist() == [*given, *continuation(target, given, 24 - len(given))]


def test_every_answer_is_written_after_the_new_ones_before_it(target: TargetModel, tmp_path: Path) -> None:
    target.model.generation_config.eos_token_id = 3  # <|im_end|>, with which the template ends a turn
    bias = target.model.get_parameter("lm_head.weight")
    bias.data[3] = bias.data[continuation(target, prompt(target, list(CHAT.messages[:1])), 3)[2]] * 1.01
    config = replace(CONFIG, max_length=120)
    Writer(target, config, tmp_path / "w.jsonl").write([CHAT])
    (line,) = map(json.loads, (tmp_path / "w.jsonl").read_text().splitlines())
    (new,) = samples_of(target, tmp_path / "w.jsonl")
    messages, answers = [], [m["content"] for m in line["messages"] if m["role"] == "assistant"]
    expected: list[int] = []
    for question, answer in zip(CHAT.messages, answers, strict=False):
        messages.append(question)
        given = prompt(target, messages)
        assert given[: len(expected)] == expected
        expected = given + continuation(target, given, 120 - len(given))
        messages.append({"role": "assistant", "content": answer})
    assert len(answers) > 1 and line["messages"] == messages
    assert new.tokens.tolist() == expected
    assert int(new.loss_mask.sum()) == line["clover"]["tokens"]


def test_what_prompts_share_with_a_finished_answer_runs_once(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record("x", messages=({"role": "system", "content": "the cat sat " * 4}, CHAT.messages[0]))
    given = prompt(target, list(record.messages))
    whole, watched = given + continuation(target, given, 9), Watched(target, monkeypatch)
    config = replace(CONFIG, max_length=len(whole), batch_size=1)
    Writer(target, config, tmp_path / "w.jsonl").write([record, record])
    assert [one.tokens.tolist() for one in samples_of(target, tmp_path / "w.jsonl")] == [whole, whole]
    assert sum(rows * tokens for rows, tokens in watched.shapes) < 2 * len(given)


def test_where_earlier_turns_are_rewritten_each_is_asked_after_the_new_answers(tmp_path: Path) -> None:
    target = load(tmp_path, STRIPS_THINKING, eos=None)
    tokenizer, config = target.require_tokenizer(), replace(CONFIG, max_length=120)
    ends_after(target, CHAT, 7)
    expected, messages = [], []
    for question in CHAT.messages:
        messages.append(question)
        given = prompt(target, messages)
        answer = continuation(target, given, 120 - len(given))
        expected.append((given, answer))
        messages.append({"role": "assistant", "content": tokenizer.decode(answer[:-1])})
    other, path, seen = (
        Record("y", messages=({"role": "user", "content": "hello"},)),
        tmp_path / "w.jsonl",
        [],
    )
    Writer(target, config, path).write([CHAT, other], lambda texts, _: seen.append(texts))
    found = samples_of(target, path)
    first = found[:3] if indices(path)[0] == 0 else found[1:]
    assert [one.tokens.tolist() for one in first] == [given + answer for given, answer in expected]
    assert [int((~one.loss_mask).sum()) for one in first] == [len(given) for given, _ in expected]
    assert len(found) == 4 and seen[-1] == 2
    again = tmp_path / "again.jsonl"
    again.write_text(path.read_text().splitlines(keepends=True)[0])
    Writer(target, config, again).write([CHAT, other])
    assert sorted(map(without_times, again.read_text().splitlines())) == sorted(
        map(without_times, path.read_text().splitlines())
    )


def without_times(line: str) -> str:
    fields = json.loads(line)
    del fields["clover"]["seconds"]
    return json.dumps(fields)


def test_an_answer_that_was_cut_off_is_not_followed(target: TargetModel, tmp_path: Path) -> None:
    Writer(target, replace(CONFIG, max_length=60), tmp_path / "w.jsonl").write([CHAT])
    (only,) = samples_of(target, tmp_path / "w.jsonl")
    (line,) = map(json.loads, (tmp_path / "w.jsonl").read_text().splitlines())
    assert len(only.tokens) == 60 and len(line["messages"]) == 2 and line["clover"]["cut"]


def test_a_long_plain_text_gives_an_opening_for_each_window(target: TargetModel, tmp_path: Path) -> None:
    record = Record("x", completion="abcdefghij" * 7)
    (whole,) = encode_records(target.require_tokenizer(), [record])
    Writer(target, CONFIG, tmp_path / "w.jsonl").write([record])
    found, tokens = samples_of(target, tmp_path / "w.jsonl"), whole.tokens.tolist()
    starts = [at for at in range(0, len(tokens), 24) if not at or len(tokens) - at >= 4]
    assert len(found) == len(starts) > 1
    assert sorted(one.tokens[:4].tolist() for one in found) == sorted(tokens[at : at + 4] for at in starts)


def test_answers_that_find_no_room_are_counted(target: TargetModel, tmp_path: Path) -> None:
    writer = Writer(target, CONFIG, tmp_path / "w.jsonl")
    writer.write([CHAT])
    (line,) = map(json.loads, (tmp_path / "w.jsonl").read_text().splitlines())
    answers = [one for one in line["messages"] if one["role"] == "assistant"]
    assert len(answers) + writer.missing == 3 and writer.missing > 0
    assert Writer(target, CONFIG, tmp_path / "w.jsonl").missing == writer.missing


def test_a_prompt_that_does_not_fit_is_left_out_and_says_why(target: TargetModel, tmp_path: Path) -> None:
    long = Record("long.jsonl, line 3", messages=({"role": "user", "content": "the cat sat " * 20},))
    silent = Record("mute.jsonl, line 1", messages=({"role": "system", "content": "the cat"},))
    writer = Writer(target, replace(CONFIG, max_length=40), tmp_path / "w.jsonl")
    writer.write([long, silent, CHAT])
    assert len(samples_of(target, tmp_path / "w.jsonl")) == 1
    first, second = writer.left_out.values()
    assert first.startswith("long.jsonl, line 3: ") and "at most 38 fit" in first
    assert second == "mute.jsonl, line 1: there is nothing that the assistant could answer"


def test_a_target_that_writes_nothing_is_an_error(target: TargetModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the target wrote nothing"):
        Writer(target, CONFIG, tmp_path / "w.jsonl").write([])
    with pytest.raises(UserError, match="the target wrote nothing"):
        Writer(target, replace(CONFIG, max_minutes=0.0), tmp_path / "w.jsonl").write(plain_texts(2))


def test_the_hash_follows_the_target_the_texts_and_the_options(target: TargetModel) -> None:
    name = writer_hash(target, "a1", CONFIG)
    assert writer_hash(TargetModel(tiny_model("llama")), "a1", CONFIG) != name
    assert writer_hash(target, "a2", CONFIG) != name
    for change in (
        {"max_length": 25},
        {"prompt_tokens": 5},
        {"temperatures": (1.0,)},
        {"seed": 1},
        {"max_new_tokens": 3},
    ):
        assert writer_hash(target, "a1", replace(CONFIG, **change)) != name
    assert writer_hash(target, "a1", replace(CONFIG, batch_size=1, max_minutes=2.0)) == name
    weight = target.model.get_parameter("model.layers.0.mlp.down_proj.weight")
    kept = weight.data.clone()
    weight.data += 0.01
    assert writer_hash(target, "a1", CONFIG) != name
    weight.data.copy_(kept)
    assert writer_hash(target, "a1", CONFIG) == name


def test_an_interrupted_run_goes_on_where_it_stopped(target: TargetModel, tmp_path: Path) -> None:
    whole, path, seen = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl", []
    Writer(target, CONFIG, whole).write(plain_texts(6))
    lines = whole.read_text().splitlines(keepends=True)
    path.write_text(lines[3] + lines[1] + lines[2][:10])
    Writer(target, CONFIG, path).write(plain_texts(6), lambda *given: seen.append(given))
    assert list(dict.fromkeys(texts for texts, _ in seen)) == [2, 4, 6]
    assert [tokens for _, tokens in seen] == list(range(40, 121, 2))  # two texts, a token of each in a step
    assert sorted(map(without_times, path.read_text().splitlines())) == sorted(
        map(without_times, whole.read_text().splitlines())
    )


def test_a_file_of_something_else_is_not_continued(target: TargetModel, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    Writer(target, CONFIG, path).write(plain_texts(2))
    with pytest.raises(
        UserError, match="w.jsonl holds texts of another target, other prompts or other options"
    ):
        Writer(target, replace(CONFIG, seed=1), path)
    path.write_text('{"text": "the cat"}\n')
    with pytest.raises(UserError, match="w.jsonl, line 1, which clover did not write so: clover is missing"):
        Writer(target, CONFIG, path)


def test_texts_that_end_make_room_and_what_runs_at_the_deadline_is_kept(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(target, CONFIG, tmp_path / "whole.jsonl").write(plain_texts(6))
    ticks = iter(range(1000))
    monkeypatch.setattr("clover.write.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    part = tmp_path / "part.jsonl"
    Writer(target, replace(CONFIG, max_minutes=0.5), part).write(plain_texts(6))
    short, full = (samples_of(target, tmp_path / name) for name in ("part.jsonl", "whole.jsonl"))
    assert [len(one.tokens) for one in short] == [24, 24, 14, 14]  # two in 20 steps, two in ten more
    for cut, one in zip(short, full, strict=False):
        assert cut.tokens.tolist() == one.tokens.tolist()[: len(cut.tokens)]


def test_what_was_answered_is_kept_where_the_deadline_comes_before_the_next_answer(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_after(target, CHAT, 7)
    answer = continuation(target, prompt(target, list(CHAT.messages[:1])), 60)
    ticks = iter(range(1000))
    monkeypatch.setattr("clover.write.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    config = replace(CONFIG, max_length=120, max_minutes=len(answer) / 60)  # a token of each in a step
    writer = Writer(target, config, tmp_path / "w.jsonl")
    writer.write([CHAT, Record("y", messages=({"role": "user", "content": "hello"},))])
    lines = [json.loads(line) for line in (tmp_path / "w.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["clover"]["index"] == 0]
    assert len(lines) == 2 and len(line["messages"]) == 2 and not line["clover"]["cut"]
    assert line["clover"]["tokens"] == len(answer) and not writer.left_out


def test_the_time_of_an_interrupted_run_counts(target: TargetModel, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    Writer(target, CONFIG, path).write(plain_texts(2))
    assert 0 < Writer(target, CONFIG, path).seconds < 60
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["clover"]["seconds"] = 61.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    Writer(target, replace(CONFIG, max_minutes=1.0), path).write(plain_texts(6))
    assert len(indices(path)) == 2
    Writer(target, replace(CONFIG, max_minutes=9.0), path).write(plain_texts(6))
    assert len(indices(path)) == 6 and 61 < Writer(target, CONFIG, path).seconds < 121


def test_another_tokenizer_reads_the_text_and_leaves_out_what_was_cut(
    target: TargetModel, tmp_path: Path
) -> None:
    path = tmp_path / "w.jsonl"
    Writer(target, CONFIG, path).write(plain_texts(1))
    line = json.loads(path.read_text())
    assert line["clover"]["tokenizer"] == vocabulary_hash(target.require_tokenizer())
    line["clover"]["tokenizer"] = "0" * 12
    whole = line | {"clover": line["clover"] | {"cut": False}}
    path.write_text(json.dumps(line) + "\n" + json.dumps(whole) + "\n")
    texts = FileTexts([path], target.require_tokenizer(), target.eos_token_ids)
    (again,) = texts
    (expected,) = encode_records(
        target.require_tokenizer(), [Record("x", prompt=line["prompt"], completion=line["completion"])]
    )
    assert again.tokens.tolist() == expected.tokens.tolist()
    (problem,) = texts.problems.values()
    assert "was cut off, and a model with another tokenizer wrote it" in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, -2]}, "samples.0.tokens.1 is -2"),
        ({"learnt": [[0, 99]]}, "a span of learnt does not lie within tokens"),
        ({"tokens": [4294967296]}, "samples.0.tokens.0 is 4294967296"),
    ],
)
def test_damaged_tokens_are_refused(tmp_path: Path, target: TargetModel, change: dict, message: str) -> None:
    path = tmp_path / "w.jsonl"
    Writer(target, CONFIG, path).write(plain_texts(1))
    line = json.loads(path.read_text())
    line["clover"]["samples"][0] |= change
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=f"w.jsonl, line 1: clover.*{message}"):
        samples_of(target, path)


def test_the_target_asks_and_answers(tmp_path: Path) -> None:
    target = load(tmp_path, CHATML, eos=None)
    weight = target.model.get_parameter("lm_head.weight")
    target.model.generation_config.eos_token_id = 3
    weight.data[3] *= 4  # so that turns end
    path, config = tmp_path / "w.jsonl", replace(CONFIG, max_length=100, batch_size=3)
    seen: list[int] = []
    Writer(target, config, path).write_with_prompts(5, lambda texts, _: seen.append(texts))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    prompts = [line["messages"][0]["content"] for line in lines]
    assert len(lines) == len(set(prompts)) == 5 == seen[-1] and all(prompts)
    for line, sample in zip(lines, samples_of(target, path), strict=True):
        given = prompt(target, line["messages"][:1])
        assert sample.tokens.tolist()[: len(given)] == given
        assert sample.tokens.tolist() == given + continuation(target, given, 100 - len(given))
    path.write_text(path.read_text()[: len(path.read_text()) // 2])
    Writer(target, config, path).write_with_prompts(5)
    assert len(set(indices(path))) == 5


def test_a_target_without_a_chat_template_asks_nothing(tmp_path: Path) -> None:
    target = load(tmp_path, None, eos=None)
    with pytest.raises(UserError, match="no chat template"):
        Writer(target, CONFIG, tmp_path / "w.jsonl").write_with_prompts(2)


def test_a_sample_keeps_its_spans() -> None:
    with pytest.raises(ValueError, match="does not lie within"):
        WrittenSample([1, 2], [(1, 1)])


def test_few_texts_join_between_two_steps_and_what_runs_counts(target: TargetModel, tmp_path: Path) -> None:
    """The first tokens do not wait for the prompts of all, and there is something to show before a text ends."""
    config = WriteConfig(max_new_tokens=9, prompt_tokens=4, batch_size=32)
    writer, seen = Writer(target, config, tmp_path / "out.jsonl"), list[tuple[int, int, float]]()
    writer.write(plain_texts(12), lambda texts, tokens: seen.append((texts, tokens, writer.begun)))
    before = [row for row in seen if not row[0]]
    assert [tokens for _, tokens, _ in before][:4] == [0, 4, 12, 24]  # four texts more at each step
    begun = [worth for _, _, worth in before]
    assert begun == sorted(begun) and begun[-1] > 0.1
    assert seen[-1][2] == 0.0


def test_progress_moves_before_the_first_text_ends(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, lines = list[float](), list[str]()

    def reach(self: Progress, done: float, doing: str | None = None) -> None:
        self.done = done
        shares.append(done)
        lines.append(doing or "")

    monkeypatch.setattr(Progress, "reach", reach)
    writer = Writer(target, WriteConfig(max_new_tokens=9, batch_size=32), tmp_path / "out.jsonl")
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"one text and number {n}"}) + "\n" for n in range(12)))
    run_writer(writer, FileTexts([path], target.require_tokenizer()))
    early = [(share, line) for share, line in zip(shares, lines, strict=True) if "0 texts, " in line]
    assert len({share for share, _ in early}) >= 5 and len({line for _, line in early}) >= 5
    assert all(a <= b for a, b in pairwise(shares))
