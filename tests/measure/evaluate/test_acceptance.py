import pytest

from clover.data.tasks import TaskPrompt
from clover.engine import Engine
from clover.measure.evaluate.acceptance import (
    Continuation,
    Group,
    Setting,
    Share,
    continue_prompts,
    count_groups,
    count_kinds,
    prompt_hash,
)
from clover.measure.evaluate.kinds import TOKEN_KINDS
from clover.measure.report.statistics import Estimate
from clover.metrics import Acceptance
from clover.target import TargetModel
from clover.tree import TreeShape
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


def plain(target: TargetModel, prompts: list[TaskPrompt], temperature: float = 0.0) -> list[Continuation]:
    return continue_prompts(Engine(target), prompts, NEW, temperature, batch_size=8)


def oracle_engine(target: TargetModel, continuations: list[Continuation], spread: int, depth: int) -> Engine:
    texts = texts_of_rows(*zip(*((one.prompt.tokens, one.tokens) for one in continuations), strict=True))
    draft = OracleDraft(target, texts, spread)
    return Engine(target, draft, TreeShape.chain(depth))  # type: ignore[arg-type]


def test_a_draft_that_knows_the_text_gives_all_but_the_bonus_tokens(target: TargetModel) -> None:
    written = plain(target, PROMPTS[:1])
    assert len(written[0].tokens) == NEW
    seen: list[float] = []
    engine = oracle_engine(target, written, spread=0, depth=3)
    found = continue_prompts(engine, PROMPTS[:1], NEW, 0.0, batch_size=8, progress=seen.append)
    assert found[0].tokens == written[0].tokens
    assert [len(step) for step in found[0].steps] == [4] * 6
    assert found[0].drafted == [True, True, True, False] * 5 + [True, True, True]
    assert found[0].acceptance.tau == 4 and found[0].acceptance.acceptance_per_depth == [1, 1, 1]
    assert seen == pytest.approx([step / 6 for step in range(1, 7)])


def test_a_text_that_ends_early_is_done(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = plain(target, PROMPTS)
    monkeypatch.setattr(TargetModel, "eos_token_ids", (ended[0].tokens[4],))
    seen: list[float] = []
    found = continue_prompts(Engine(target), PROMPTS, NEW, 0.0, batch_size=1, progress=seen.append)
    lengths = [len(one.tokens) for one in found]
    assert lengths[0] <= 5 and len(seen) == sum(lengths)
    assert seen[lengths[0] - 1] == pytest.approx(1 / 3)  # the first of three
    assert seen[-1] == 1 and seen == sorted(seen)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding_and_prompts_have_seeds(
    target: TargetModel, temperature: float
) -> None:
    written = plain(target, PROMPTS, temperature)
    engine = oracle_engine(target, written, spread=2, depth=4)
    found = continue_prompts(engine, PROMPTS, NEW, temperature, batch_size=3)
    assert [one.tokens for one in found] == [one.tokens for one in written]
    one_by_one = continue_prompts(Engine(target), PROMPTS, NEW, temperature, batch_size=1)
    assert [one.tokens for one in one_by_one] == [one.tokens for one in written]
    if temperature:
        again = continue_prompts(Engine(target), [PROMPTS[0]] * 2, NEW, temperature, batch_size=2)
        assert again[0].tokens == written[0].tokens != again[1].tokens


def test_counts_agree_with_those_of_tau(target: TargetModel) -> None:
    written = plain(target, PROMPTS)
    found = continue_prompts(oracle_engine(target, written, 1, 4), PROMPTS, NEW, 0.0, batch_size=3)
    accepted = sum(sum(len(step) - 1 for step in one.steps) for one in found)
    assert accepted == sum(group.total.accepted for group in count_groups(found)) > 0
    drafted = [mark for one in found for mark in one.drafted]
    assert len(drafted) == sum(len(one.tokens) - 1 for one in found) and sum(drafted) == accepted


def test_plain_decoding_accepts_nothing(target: TargetModel) -> None:
    assert not any(mark for one in plain(target, PROMPTS) for mark in one.drafted)


def hand_made(group: str, prompt: list[int], steps: list[list[int]]) -> Continuation:
    acceptance = Acceptance()
    for step in steps:
        acceptance.record(len(step), 3)
    return Continuation(TaskPrompt(group, tuple(prompt), "x"), tuple(map(tuple, steps)), acceptance)


def counts(shares: tuple[Share, ...]) -> dict[str, tuple[int, int]]:
    """Accepted draft tokens and all new tokens by kind."""
    return {share.kind: (round(share.share.value * share.emitted), share.emitted) for share in shares}


def test_groups_add_up_and_have_errors_over_prompts() -> None:
    continuations = [
        hand_made("a", [1], [[2, 3], [4]]),
        hand_made("b", [1], [[2, 3, 4, 5]]),
        hand_made("a", [7], [[2, 3, 4]]),
    ]
    groups = count_groups(continuations)
    assert [(g.name, len(g.acceptances), g.tau.value) for g in groups] == [("a", 2, 2.0), ("b", 1, 4.0)]
    assert groups[0].tau.error == pytest.approx(2 / 3) and groups[1].tau.error is None
    assert [depth.value for depth in groups[0].depths] == pytest.approx([2 / 3, 1 / 2, 0])
    setting = Setting("chain:3", 3, 0.0, groups, (Share("digits", 4, Estimate(0.75)),))
    assert setting.all.total == sum((one.acceptance for one in continuations), Acceptance())
    json = setting.to_dict()
    assert json["tau"] == 2.5 and json["nodes"] == 3
    assert json["per_prompt"] == [(3, 2), (3, 1), (4, 1)]  # new tokens and steps, group by group
    assert json["prompt_hashes"] == [prompt_hash((1,)), prompt_hash((7,)), prompt_hash((1,))]
    assert [(group["group"], group["tau"]) for group in json["groups"]] == [("a", 2.0), ("b", 4.0)]
    assert json["kinds"][0]["share"]["value"] == 0.75 and json["kinds"][0]["emitted"] == 4


def test_a_setting_without_prompts_has_no_depths() -> None:
    assert Group("all", (), ()).depths == []


def test_kinds_of_emitted_tokens() -> None:
    tokenizer = make_tokenizer()

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    word, digit, point, space, end = (ids(text) for text in (" cat", "7", ".", "\n", "</s>"))
    assert all(len(piece) == 1 for piece in (word, digit, point, space, end))
    steps = [[*word, *digit], [*point], [*word, *space, *end], [*point, *word]]
    found = count_kinds([hand_made("a", ids("the"), steps)], tokenizer)
    assert [share.kind for share in found] == [kind for kind in TOKEN_KINDS if kind != "inside a word"]
    assert counts(found) == {
        "first of a word": (2, 2),  # the last word is the text's last token, which is left out
        "digits": (0, 1),
        "punctuation": (1, 2),
        "white space": (1, 1),
        "special": (0, 1),
    }
