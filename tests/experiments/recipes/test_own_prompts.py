"""Prompts that a target writes itself: how its turn is opened, which texts count, and what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from clover.data.chat import encode_user_opening
from clover.errors import UserError
from clover.target import TargetModel
from experiments.recipes.own_prompts import SOURCE, write_own_prompts
from tests.data.tokenizers import CHATML, make_tokenizer
from tests.tiny import save_tiny_pair


def test_the_opening_is_what_the_template_writes_before_a_user_speaks() -> None:
    tokenizer = make_tokenizer(CHATML)
    whole = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    opening = tokenizer.decode(encode_user_opening(tokenizer))
    assert whole.startswith(opening + "hi") and "user" in opening


@pytest.mark.parametrize(
    ("template", "message"),
    [(None, "has no chat template"), ("{{ messages[0]['content'] }}", "writes nothing before")],
)
def test_a_template_without_an_opening_is_refused(template: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode_user_opening(make_tokenizer(template))


def test_prompts_are_turns_that_end_and_differ_and_come_again_with_the_same_seeds(tmp_path: Path) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path)[0])
    assert target.tokenizer is not None
    shown: list[int] = []
    for name in ("a", "b"):
        write_own_prompts(target, 6, 4, tmp_path / name, shown.append)
    rows = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    texts = [row["messages"][0]["content"] for row in rows]
    assert len(set(texts)) == 6 and all(texts) and shown[:7] == [0, 1, 2, 3, 4, 5, 6]
    assert {row["source"] for row in rows} == {SOURCE}
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert not any(target.tokenizer.eos_token in text for text in texts)


# One by one, many tokens end a turn: with the one of the tokenizer alone turns are long.
@pytest.mark.parametrize(("batch_size", "ends"), [(1, [1, *range(60, 100)]), (4, [1])])
def test_a_stopped_run_goes_on_and_writes_the_same(tmp_path: Path, batch_size: int, ends: list[int]) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path)[0])
    target.model.generation_config.eos_token_id = ends
    shown: list[int] = []

    def stop_at_three(prompts: int) -> None:
        if prompts == 3:
            raise KeyboardInterrupt

    for name in ("whole", "stopped"):
        with contextlib.suppress(KeyboardInterrupt):
            show = stop_at_three if name == "stopped" else print
            write_own_prompts(target, 6, batch_size, tmp_path / name, show)
    partial = tmp_path / "stopped.partial"
    partial.write_text(partial.read_text() + '{"seed":90')  # half a line, as a kill leaves it
    write_own_prompts(target, 6, batch_size, tmp_path / "stopped", shown.append)
    assert shown == [3, 4, 5, 6] and not partial.exists()
    assert (tmp_path / "whole").read_text() == (tmp_path / "stopped").read_text()


def test_a_target_whose_turns_never_end_is_refused(tmp_path: Path) -> None:
    target = TargetModel.load(save_tiny_pair(tmp_path)[0])
    target.model.generation_config.eos_token_id = None
    target.config.eos_token_id = None
    with pytest.raises(UserError, match="the target asks nothing"):
        write_own_prompts(target, 2, 4, tmp_path / "a")
    assert not (tmp_path / "a").exists()
