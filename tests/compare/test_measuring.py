from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clover.compare.accuracy import measure_accuracy, written_texts
from clover.compare.measuring import make_engines, measure
from clover.compare.plan import Draft, Method
from clover.compare.suite import Task
from clover.compare.text import task_prompts
from clover.compare.training import new_draft
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.evaluate.accuracy import MAX_HEADS
from clover.interleaved import make_batches
from clover.target import TargetModel

DRAFT = Draft(Method("clover2", seed=3), "clover2", {"num_heads": 3}, ("chain:2", "drawn:chain:2"))
PROMPTS = [(5, 6, 7), (8, 9), (10, 11, 12, 13)]


@pytest.fixture(scope="module")
def target(tiny_files: Path) -> TargetModel:
    return TargetModel.load(tiny_files / "target", dtype="float64", device="cpu")


def test_rounds_are_measured_against_plain_decoding(target: TargetModel) -> None:
    engines = make_engines(target, [(DRAFT, new_draft(target, DRAFT))])
    shares: list[float] = []
    plain, chain, drawn = measure(engines, make_batches(PROMPTS, 2, 1.0, 12, 100), 3, shares.append)
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert (plain.nodes, chain.nodes, drawn.nodes) == (0, 2, 2)
    assert plain.tau == 1.0 and 1.0 <= chain.tau <= 3.0
    assert chain.texts == 4 and chain.identical == 4 and chain.exact
    assert not drawn.exact  # rule B draws other tokens from the same distribution
    for one in (chain, drawn):
        ratios = [a / b for a, b in zip(one.tokens_per_second, plain.tokens_per_second)]
        assert one.speedups == pytest.approx(ratios)
        assert one.speedup == sorted(one.speedups)[1]


def test_an_unknown_tree_names_the_system(target: TargetModel) -> None:
    draft = Draft(Method("mine"), "clover2", {"num_heads": 3}, ("chain:17",))
    with pytest.raises(UserError, match="system 'mine': .*17"):
        make_engines(target, [(draft, new_draft(target, draft))])
    with pytest.raises(UserError, match="system 'mine': "):
        new_draft(target, Draft(Method("mine"), "clover2", {"number": 3}, ()))


def test_the_seed_decides_the_starting_values(target: TargetModel) -> None:
    one, same = (new_draft(target, DRAFT).state_dict() for _ in range(2))
    other = new_draft(target, Draft(Method("clover2", seed=4), "clover2", {"num_heads": 3}, ())).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_accuracy_is_of_what_the_target_writes(target: TargetModel) -> None:
    texts = written_texts(target, PROMPTS, 12)
    events = Engine(target).run([Request(PROMPTS[0], 12)])
    greedy = [token for event in events for token in event.tokens]
    assert texts[0].tokens.tolist() == [*PROMPTS[0], *greedy]
    assert texts[0].loss_mask.tolist() == [False] * 3 + [True] * len(greedy)
    found = measure_accuracy(target, new_draft(target, DRAFT), DRAFT.method, "code", texts)
    assert len(found.forced) == len(found.chained) == len(found.positions) == MAX_HEADS
    assert found.forced[0] == found.chained[0]  # nothing comes before the first head
    for head in found.forced:
        assert list(head) == sorted(head) and head[0] >= 0 and head[-1] <= 1


def test_prompts_of_a_file(target: TargetModel, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("one two\n" + "long " * 100 + "\nthree\nfour\n")
    prompts = task_prompts(target, Task("a", file=str(file)), 2)
    tokenizer = target.tokenizer
    assert tokenizer is not None
    assert prompts == [tuple(tokenizer(text)["input_ids"]) for text in ("one two", "three")]
    with pytest.raises(UserError, match="task 'a' has no prompt"):
        task_prompts(target, Task("a", file=str(file), group="math"), 2)
