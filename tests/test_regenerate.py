"""Texts written anew by the target: what is kept, what is written, and going on after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clover.data import FileTexts, Sample
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.regenerate import RegenerateConfig, read_regenerated, regenerate, written_name, written_seconds
from clover.target import TargetModel
from tests.data.tokenizers import STRIPS_THINKING
from tests.families import tiny_model
from tests.tiny import save_tiny_pair

CONFIG = RegenerateConfig(max_length=24, prompt_tokens=4, temperatures=(0.0,), batch_size=2)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    return TargetModel(model)


def sample(tokens: list[int], learnt: list[int]) -> Sample:
    return Sample(torch.tensor(tokens, dtype=torch.int32), torch.tensor(learnt, dtype=torch.bool))


def continuation(target: TargetModel, prompt: list[int], count: int) -> list[int]:
    events = Engine(target).run([Request(tuple(prompt), count)])
    return [token for event in events for token in event.tokens]


@pytest.mark.parametrize("noted", ['"abc"', "null", "NaN", "-1"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, noted: str) -> None:
    (tmp_path / "w.jsonl").touch()
    (tmp_path / "w.seconds.json").write_text(f'{{"seconds": {noted}}}')
    with pytest.raises(UserError, match=r"w\.seconds\.json"):
        written_seconds(tmp_path / "w.jsonl")


def test_plain_text_keeps_its_opening(target: TargetModel, tmp_path: Path) -> None:
    text = list(range(3, 23))
    (new,) = regenerate(target, [sample(text, [1] * 20)], CONFIG, tmp_path / "w.jsonl")
    assert new.tokens.tolist() == [*text[:4], *continuation(target, text[:4], 20)]
    assert new.loss_mask.tolist() == [False] * 4 + [True] * 20


def test_every_answer_is_written_after_the_new_ones_before_it(target: TargetModel, tmp_path: Path) -> None:
    config = RegenerateConfig(max_length=60, temperatures=(0.0,), batch_size=2)
    eos = continuation(target, [3, 4, 5], 40)[7]
    target.model.generation_config.eos_token_id = eos
    try:
        chat = sample([3, 4, 5, 9, 9, 6, 7, 8, 8], [0, 0, 0, 1, 1, 0, 0, 1, 1])
        (new,) = regenerate(target, [chat], config, tmp_path / "w.jsonl")
        first = continuation(target, [3, 4, 5], 57)
        second = continuation(target, [3, 4, 5, *first, 6, 7], 60 - 5 - len(first))
        assert new.tokens.tolist() == [3, 4, 5, *first, 6, 7, *second]
        expected = [False] * 3 + [True] * len(first) + [False] * 2 + [True] * len(second)
        assert new.loss_mask.tolist() == expected
    finally:
        target.model.generation_config.eos_token_id = None


def test_where_earlier_turns_are_rewritten_each_is_asked_after_the_new_answers(tmp_path: Path) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path, STRIPS_THINKING)[0])
    tokenizer, config = target.tokenizer, RegenerateConfig(max_length=120, temperatures=(0.0,), batch_size=2)
    assert tokenizer is not None
    asked = ["the cat?", "and the mat?", "yes or no?"]
    path, written = tmp_path / "d.jsonl", tmp_path / "w.jsonl"
    path.write_text(json.dumps({"turns": asked}) + '\n{"turns": ["hello"]}\n')

    def prompt(messages: list[dict[str, str]]) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    first = prompt([{"role": "user", "content": asked[0]}])
    target.model.generation_config.eos_token_id = continuation(target, first, 40)[7]
    expected, messages = [], []
    for question in asked:
        messages.append({"role": "user", "content": question})
        given = prompt(messages)
        answer = continuation(target, given, 120 - len(given))
        expected.append((given, answer))
        messages.append({"role": "assistant", "content": tokenizer.decode(answer[:-1])})
    texts = FileTexts([path], tokenizer, target.eos_token_ids, stand_ins=True)
    seen: list[int] = []
    found = regenerate(target, texts, config, written, lambda samples, _: seen.append(samples))
    assert [one.tokens.tolist() for one in found[:3]] == [given + answer for given, answer in expected]
    assert [int((~one.loss_mask).sum()) for one in found[:3]] == [len(given) for given, _ in expected]
    assert len(found) == 4 and seen[-1] == 2 and max(seen) == 2
    assert "…" not in "".join(tokenizer.decode(one.tokens) for one in found)

    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if line.startswith('{"index":0,')))
    again = regenerate(target, texts, config, written)
    assert [one.tokens.tolist() for one in again] == [one.tokens.tolist() for one in found]


def test_an_answer_that_was_cut_off_is_not_followed(tmp_path: Path) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path, STRIPS_THINKING)[0])
    tokenizer = target.tokenizer
    assert tokenizer is not None
    target.config.eos_token_id = target.model.generation_config.eos_token_id = None
    (tmp_path / "d.jsonl").write_text('{"turns": ["the cat?", "and the mat?"]}\n')
    texts = FileTexts([tmp_path / "d.jsonl"], tokenizer, stand_ins=True)
    (only,) = regenerate(target, texts, replace(CONFIG, max_length=60), tmp_path / "w.jsonl")
    assert len(only.tokens) == 60


def test_a_long_plain_text_gives_an_opening_for_each_window(target: TargetModel, tmp_path: Path) -> None:
    text = [3 + i % 40 for i in range(75)]
    seen: list[int] = []
    found = regenerate(
        target, [sample(text, [1] * 75)], CONFIG, tmp_path / "w.jsonl", lambda texts, _: seen.append(texts)
    )
    assert [one.tokens[:4].tolist() for one in found] == [text[at : at + 4] for at in (0, 24, 48)]
    assert all(len(one.tokens) == 24 for one in found)
    assert seen[-1] == 1 and max(seen) == 1


def test_a_text_ends_before_the_first_turn_that_does_not_fit(target: TargetModel, tmp_path: Path) -> None:
    eos = continuation(target, [3, 4, 5], 40)[2]
    target.model.generation_config.eos_token_id = eos
    try:
        chat = sample([3, 4, 5, 9, *[6] * 30, 8, 7, 9], [0, 0, 0, 1, *[0] * 30, 1, 0, 1])
        (new,) = regenerate(target, [chat], CONFIG, tmp_path / "w.jsonl")
        assert new.tokens.tolist() == [3, 4, 5, *continuation(target, [3, 4, 5], 21)]
        assert len(new.tokens) < CONFIG.max_length - 2  # the third turn alone would fit
    finally:
        target.model.generation_config.eos_token_id = None


def test_the_name_follows_the_target_the_texts_and_the_options(target: TargetModel) -> None:
    samples = "a1"
    name = written_name(target, samples, CONFIG)
    assert written_name(TargetModel(tiny_model("llama")), samples, CONFIG) != name  # it has ends of texts
    assert written_name(target, "a2", CONFIG) != name
    for change in ({"max_length": 25}, {"prompt_tokens": 5}, {"temperatures": (1.0,)}, {"seed": 1}):
        assert written_name(target, samples, replace(CONFIG, **change)) != name
    assert written_name(target, samples, replace(CONFIG, batch_size=1, max_minutes=2.0)) == name
    weight = target.model.get_parameter("model.layers.0.mlp.down_proj.weight")
    kept = weight.data.clone()
    weight.data += 0.01
    assert written_name(target, samples, CONFIG) != name
    weight.data.copy_(kept)
    assert written_name(target, samples, CONFIG) == name


def test_an_interrupted_run_goes_on_where_it_stopped(target: TargetModel, tmp_path: Path) -> None:
    samples = [sample([3 + i, 4, 5, 6, 7, 8, 9, 10], [1] * 8) for i in range(6)]
    whole = regenerate(target, samples, CONFIG, tmp_path / "whole.jsonl")
    path, seen = tmp_path / "cut.jsonl", []
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    path.write_text(lines[3] + lines[1] + lines[2][:10])
    again = regenerate(target, samples, CONFIG, path, lambda *given: seen.append(given))
    assert list(dict.fromkeys(texts for texts, _ in seen)) == [2, 4, 6]
    assert [tokens for _, tokens in seen] == list(range(40, 121, 2))  # two texts, a token of each in a step
    assert [s.tokens.tolist() for s in again] == [s.tokens.tolist() for s in whole]
    assert sorted(path.read_text().splitlines(keepends=True)) == sorted(lines)
    assert [s.tokens.tolist() for s in read_regenerated(path)] == [s.tokens.tolist() for s in whole]


def test_texts_that_end_make_room_and_what_runs_at_the_deadline_is_kept(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [sample([3 + i, 4, 5, 6, 7, 8, 9, 10], [1] * 8) for i in range(6)]
    whole = regenerate(target, samples, CONFIG, tmp_path / "whole.jsonl")
    ticks = iter(range(1000))
    monkeypatch.setattr("clover.regenerate.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    part = regenerate(target, samples, replace(CONFIG, max_minutes=0.5), tmp_path / "part.jsonl")
    assert len(part) == 4  # two that ended after 20 steps, and two after eight more
    for short, full in zip(part, whole, strict=False):
        assert short.tokens.tolist() == full.tokens.tolist()[: len(short.tokens)]
    assert [len(s.tokens) for s in part] == [24, 24, 12, 12]


def test_the_time_of_an_interrupted_run_counts(target: TargetModel, tmp_path: Path) -> None:
    samples = [sample([3 + i, 4, 5, 6, 7, 8, 9, 10], [1] * 8) for i in range(6)]
    path = tmp_path / "texts.jsonl"
    assert len(regenerate(target, samples[:2], CONFIG, path)) == 2 and 0 < written_seconds(path) < 60
    (tmp_path / "texts.seconds.json").write_text('{"seconds": 61}')
    assert len(regenerate(target, samples, replace(CONFIG, max_minutes=1.0), path)) == 2
    assert len(regenerate(target, samples, replace(CONFIG, max_minutes=9.0), path)) == 6
    assert 61 < written_seconds(path) < 121


def test_the_time_since_the_last_text_ended_is_noted_where_a_run_is_stopped(
    target: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [sample([3 + i, 4, 5, 6, 7, 8, 9, 10], [1] * 8) for i in range(6)]
    path, ticks, noted = tmp_path / "texts.jsonl", iter(range(1000)), []
    monkeypatch.setattr("clover.regenerate.time", SimpleNamespace(monotonic=lambda: next(ticks)))

    def stop(texts: int, tokens: int) -> None:
        if texts == 2:
            noted.append(written_seconds(path))
        if len(noted) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate(target, samples, CONFIG, path, stop)
    assert noted == [noted[0]] * 6
    assert written_seconds(path) == noted[0] + 6  # one look at the clock in each step, one at the end


def test_a_prompt_that_does_not_fit_is_left_out(target: TargetModel, tmp_path: Path) -> None:
    chats = [sample([3] * length + [9], [0] * length + [1]) for length in (30, 30, 30, 5)]
    (new,) = regenerate(target, chats, CONFIG, tmp_path / "w.jsonl")
    assert new.tokens.tolist()[:5] == [3] * 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"index": 1}', "tokens is missing"),
        ("not json", "Invalid JSON"),
        ('{"index": 0, "tokens": [1, 2], "loss_mask": [1]}', "differ in length"),
        (
            '{"index": 1, "tokens": [1, "2"], "loss_mask": [1, 1]}',
            "tokens.1 is '2'; it must be a valid integer",
        ),
        (
            '{"index": 1, "tokens": [4294967296], "loss_mask": [1]}',
            "tokens.0 is 4294967296; it must be less than",
        ),
        ('{"index": 1, "tokens": [NaN], "loss_mask": [1]}', "tokens.0 is nan"),
        ('{"tokens": ' + "[" * 9999, "Invalid JSON"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"index": 0, "tokens": [1], "loss_mask": [1]}\n' + content + "\n")
    with pytest.raises(UserError, match=f"w.jsonl, line 2, .*{message}"):
        read_regenerated(path)
