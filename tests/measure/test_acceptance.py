from functools import reduce
from itertools import chain
from operator import add

import pytest

from clover.data.tasks import TaskPrompt
from clover.engine import Engine, PhaseClock, Request
from clover.measure.acceptance import (
    EvaluatedSetting,
    Group,
    Share,
    count_groups,
    count_kinds,
    count_places,
    drafted_tokens,
    prompt_hash,
)
from clover.measure.kinds import TOKEN_KINDS
from clover.measure.report.statistics import Estimate
from clover.measure.timing import Run, time_decoding
from clover.metrics import Acceptance
from clover.target import TargetModel
from tests.data.tokenizers import make_tokenizer
from tests.families import tiny_model
from tests.oracle import OracleDraft, texts_of_rows

PROMPTS = [
    TaskPrompt("a", (5, 6, 7), "file, line 1"),
    TaskPrompt("b", (8, 9), "file, line 2"),
    TaskPrompt("a", (11, 12, 13, 14), "file, line 3"),
]
NEW = 24


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def requests(prompts: list[TaskPrompt]) -> list[Request]:
    return [Request(prompt.tokens, NEW) for prompt in prompts]


def oracle_run(target: TargetModel, prompts: list[TaskPrompt], spread: int, depth: int) -> Run:
    """Continue the prompts with a draft that knows how plain decoding does it."""
    plain = time_decoding(Engine(target), requests(prompts))
    texts = texts_of_rows([prompt.tokens for prompt in prompts], plain.texts)
    draft = OracleDraft(target, texts, spread)
    run = time_decoding(Engine(target, draft, f"chain:{depth}"), requests(prompts))  # type: ignore[arg-type]
    assert run.texts == plain.texts
    return run


def test_a_draft_that_knows_the_text_gives_all_but_the_bonus_tokens(target: TargetModel) -> None:
    run = oracle_run(target, PROMPTS[:1], spread=0, depth=3)
    assert [len(step) for step in run.steps[0]] == [4] * 6
    assert drafted_tokens(run.steps[0]) == [True, True, True, False] * 5 + [True, True, True]
    (group,) = count_groups(PROMPTS[:1], run)
    assert group.tau.value == 4 and [depth.value for depth in group.depths] == [1, 1, 1]


def test_counts_agree_with_those_of_tau(target: TargetModel) -> None:
    run = oracle_run(target, PROMPTS, 1, 4)
    accepted = sum(sum(len(step) - 1 for step in steps) for steps in run.steps)
    assert accepted == sum(group.total.accepted for group in count_groups(PROMPTS, run)) > 0
    drafted = [mark for steps in run.steps for mark in drafted_tokens(steps)]
    assert len(drafted) == run.tokens - len(PROMPTS) and sum(drafted) == accepted


def hand_made(*texts: list[list[int]]) -> Run:
    """A run of texts by their steps, each with a draft of depth 3."""
    acceptances = []
    for steps in texts:
        acceptances.append(Acceptance())
        for step in steps:
            acceptances[-1].record(len(step), 3)
    whole = tuple(tuple(chain(*steps)) for steps in texts)
    steps = tuple(tuple(map(tuple, steps)) for steps in texts)
    return Run(whole, 1.0, reduce(add, acceptances), PhaseClock(), tuple(acceptances), steps)


def prompt(group: str, *tokens: int) -> TaskPrompt:
    return TaskPrompt(group, tokens, "x")


def counts(shares: tuple[Share, ...]) -> dict[str, tuple[int, int]]:
    """Accepted draft tokens and all new tokens by kind."""
    return {share.kind: (round(share.share.value * share.emitted), share.emitted) for share in shares}


def test_groups_add_up_and_have_errors_over_prompts() -> None:
    prompts = [prompt("a", 1), prompt("b", 1), prompt("a", 7)]
    run = hand_made([[2, 3], [4]], [[2, 3, 4, 5]], [[2, 3, 4]])
    groups = count_groups(prompts, run)
    assert [(g.name, len(g.acceptances), g.tau.value) for g in groups] == [("a", 2, 2.0), ("b", 1, 4.0)]
    assert groups[0].tau.error == pytest.approx(2 / 3) and groups[1].tau.error is None
    assert [depth.value for depth in groups[0].depths] == pytest.approx([2 / 3, 1 / 2, 0])
    setting = EvaluatedSetting("chain:3", 3, 0.0, groups, (Share("digits", 4, Estimate(0.75)),))
    assert setting.all.total == run.acceptance
    json = setting.to_dict()
    assert json["tau"] == 2.5 and json["budget"] == 3
    assert json["per_prompt"] == [(3, 2), (3, 1), (4, 1)]  # new tokens and steps, group by group
    assert json["prompt_hashes"] == [prompt_hash((1,)), prompt_hash((7,)), prompt_hash((1,))]
    assert [(group["group"], group["tau"]) for group in json["groups"]] == [("a", 2.0), ("b", 4.0)]
    assert json["kinds"][0]["share"]["value"] == 0.75 and json["kinds"][0]["emitted"] == 4


def test_places_are_where_steps_begin() -> None:
    prompts = [TaskPrompt("a", (5,) * length, "x") for length in (253, 255, 1000)]
    run = hand_made([[1, 2], [3, 4, 5, 6], [7]], [[1, 2, 3]], [[1]] * 24 + [[2, 3]] * 5)
    low, middle, high, last = count_places(prompts, run)
    assert (low.start, low.end, low.texts, low.steps, low.tokens) == (0, 256, 2, 3, 9)
    assert low.tau.value == 3.0 and low.tau.error == pytest.approx(0.0)
    assert (middle.start, middle.end, middle.steps, middle.tokens) == (256, 512, 1, 1)
    assert (high.start, high.end, high.steps, high.tokens) == (512, 1024, 24, 24)
    assert (last.start, last.end, last.tau) == (1024, 2048, Estimate(2.0))


def test_a_setting_without_prompts_has_no_depths() -> None:
    assert Group("all", (), ()).depths == []


def test_kinds_of_emitted_tokens() -> None:
    tokenizer = make_tokenizer()

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    word, digit, point, space, end = (ids(text) for text in (" cat", "7", ".", "\n", "</s>"))
    assert all(len(piece) == 1 for piece in (word, digit, point, space, end))
    steps = [[*word, *digit], [*point], [*word, *space, *end], [*point, *word]]
    found = count_kinds([prompt("a", *ids("the"))], hand_made(steps), tokenizer)
    assert [share.kind for share in found] == [kind for kind in TOKEN_KINDS if kind != "inside a word"]
    assert counts(found) == {
        "first of a word": (2, 2),  # the last word is the text's last token, which is left out
        "digits": (0, 1),
        "punctuation": (1, 2),
        "white space": (1, 1),
        "special": (0, 1),
    }
