from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from clover.data import Batch
from clover.drafts import DraftModel, RecallDraft
from clover.drafts.loading import SYSTEMS
from clover.measure.accuracy import (
    MAX_HEADS,
    TOP,
    HeadAccuracy,
    as_sample,
    count_ranks,
    measure_heads,
    rank_tokens,
    text_batches,
)
from clover.target import TargetModel
from tests.families import VOCAB, tiny_model
from tests.oracle import OracleDraft

HEADS = 5


@cache
def tiny_target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@cache
def tiny_draft() -> RecallDraft:
    torch.manual_seed(1)
    return RecallDraft.from_target(tiny_target(), num_heads=HEADS).eval()


def heads_of(draft: DraftModel) -> int:
    return min(draft.max_depth, MAX_HEADS)


def make_batch(lengths: list[int], first_predicted: list[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCAB, (len(lengths), max(lengths)), generator=generator)
    places = torch.arange(max(lengths))
    ends, starts = torch.tensor(lengths)[:, None], torch.tensor(first_predicted)[:, None]
    return Batch(tokens.where(places < ends, 0), (places >= starts) & (places < ends), torch.tensor(lengths))


def order(logits: Tensor) -> list[int]:
    """All tokens, the best first; of equals the smaller."""
    values = logits.tolist()
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


def slow_orders(draft: DraftModel, batch: Batch, row: int, at: int) -> list[list[int]]:
    """The orders of all heads at one position, by a session of its own."""
    target = tiny_target()
    text = batch.tokens[row : row + 1, : int(batch.lengths[row])]
    read = target.train_forward(text, draft.config.hidden_state).read
    session = draft.new_session(1, text.shape[1])
    logits = session.commit(read[:, : at + 1], text[:, 1 : at + 2], [at + 1])
    found = [order(logits[0])]
    for head in range(1, heads_of(draft)):
        if at + 2 + head >= text.shape[1]:
            break
        logits = session.advance(torch.zeros(1, 1, dtype=torch.long), text[:, at + 1 + head : at + 2 + head])
        found.append(order(logits[0, 0]))
    return found


@torch.no_grad()
def slow_accuracy(batch: Batch, draft: DraftModel) -> HeadAccuracy:
    """The counts by plain loops over texts, positions and heads."""
    heads = heads_of(draft)
    texts = []
    for row, length in enumerate(batch.lengths.tolist()):
        text = batch.tokens[row, :length].tolist()
        positions = [0] * heads
        forced, chained = ([[0] * len(TOP) for _ in range(heads)] for _ in range(2))
        for at in range(length - 2):
            if not batch.predicted_mask[row, at + 2]:
                continue
            right_so_far = True
            for head, best in enumerate(slow_orders(draft, batch, row, at)):
                if not batch.predicted_mask[row, at + 2 + head]:
                    break
                label = text[at + 2 + head]
                positions[head] += 1
                for place, size in enumerate(TOP):
                    forced[head][place] += label in best[:size]
                    chained[head][place] += right_so_far and label in best[:size]
                right_so_far &= best[0] == label
        texts.append((tuple(positions), tuple(map(tuple, forced)), tuple(map(tuple, chained))))
    return HeadAccuracy(*zip(*texts))


@pytest.mark.parametrize("first_predicted", [[0, 0, 0], [0, 5, 9], [4, 1, 6]])
def test_accuracy_is_that_of_a_loop_over_positions(first_predicted: list[int]) -> None:
    batch = make_batch([14, 9, 12], first_predicted)
    measured = measure_heads(tiny_target(), tiny_draft(), [batch])
    assert measured == slow_accuracy(batch, tiny_draft())
    assert measured.totals[0] > measured.totals[-1] > 0


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_system_is_measured_at_all_its_depths(system: str) -> None:
    torch.manual_seed(2)
    draft = SYSTEMS[system].from_target(tiny_target()).eval()
    batch = make_batch([13, 11], [3, 2])
    batch.tokens[:, 8:10] = batch.tokens[:, 4:6]  # something that was there before
    measured = measure_heads(tiny_target(), draft, [batch])
    assert len(measured.totals) == heads_of(draft) > 1
    assert measured == slow_accuracy(batch, draft)


def test_a_gap_in_what_is_predicted_ends_a_chain() -> None:
    batch = make_batch([12], [2])
    batch.predicted_mask[0, 6:8] = False
    measured = measure_heads(tiny_target(), tiny_draft(), [batch])
    assert measured == slow_accuracy(batch, tiny_draft())
    assert measured.totals == [8, 6, 4, 2, 0, 0, 0, 0]


def test_the_session_says_what_training_says() -> None:
    """Head i at t is what `forward` gives at [i, :, t], for a draft that trains all its depths."""
    batch = make_batch([11], [0])
    read = tiny_target().train_forward(batch.tokens).read
    with torch.no_grad():
        outputs = tiny_draft()(read, batch.tokens)
        logits = tiny_draft().train_logits(outputs.movedim(0, -2))  # [B, T, D, V]
    ranks = rank_tokens(tiny_target(), tiny_draft(), batch)
    for head in range(HEADS):
        for at in range(11 - 2 - head):
            label = int(batch.tokens[0, at + 2 + head])
            assert int(ranks[head, 0, at]) == order(logits[0, at, head]).index(label)


def oracle_case(spread: int) -> tuple[Batch, OracleDraft]:
    batch = make_batch([20, 20], [2, 2], seed=3)
    return batch, OracleDraft(tiny_target(), batch.tokens.tolist(), spread)


def test_a_draft_that_knows_the_text_is_always_right() -> None:
    batch, oracle = oracle_case(spread=0)
    measured = measure_heads(tiny_target(), oracle, [batch])  # type: ignore[arg-type]
    assert measured.totals == [2 * (18 - head) for head in range(MAX_HEADS)]
    assert measured.forced == measured.chained
    assert all(share.value == 1.0 for row in measured.shares(measured.forced) for share in row)


def test_a_draft_that_is_right_at_known_ranks() -> None:
    batch, oracle = oracle_case(spread=3)
    measured = measure_heads(tiny_target(), oracle, [batch])  # type: ignore[arg-type]
    places = {
        (row, at): order(oracle.opinion(row, at)).index(int(batch.tokens[row, at]))
        for row in range(2)
        for at in range(2, 20)
    }
    for head in range(MAX_HEADS):
        ends = [(row, at) for row, at in places if at - head >= 2]
        chains = [
            (row, at) for row, at in ends if all(places[row, at - back] == 0 for back in range(1, head + 1))
        ]
        for place, size in enumerate(TOP):
            forced, chained = (
                sum(right for right, _ in measured.pairs(counts, head, place))
                for counts in (measured.forced, measured.chained)
            )
            assert forced == sum(places[end] < size for end in ends)
            assert chained == sum(places[end] < size for end in chains)
    assert 0 < measured.shares(measured.chained)[1][0].value < measured.shares(measured.forced)[1][0].value


class FixedSession:
    """Says the same whatever comes."""

    def __init__(self, logits: Tensor):
        self.logits = logits

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        return self.logits.expand(len(counts), -1)

    def advance(self, slots: Tensor, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


def rank_with(logits: Tensor, text: list[int]) -> list[int]:
    draft = SimpleNamespace(
        config=SimpleNamespace(hidden_state="post_norm"),
        d2t=None,
        session_tokens=None,
        target=SimpleNamespace(vocab_size=logits.shape[-1]),
        max_depth=1,
        new_session=lambda *_: FixedSession(logits),
    )
    batch = Batch(torch.tensor([text]), torch.ones(1, len(text), dtype=torch.bool), torch.tensor([len(text)]))
    return rank_tokens(tiny_target(), draft, batch)[0, 0].tolist()  # type: ignore[arg-type]


def test_equal_logits_stand_in_the_order_of_tokens_and_impossible_tokens_nowhere() -> None:
    logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    logits[[4, 7, 9]] = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    assert rank_with(logits, [3, 3, 7, 4, 9, 0]) == [0, 1, 2, VOCAB, VOCAB, VOCAB]


def test_batches_are_joined() -> None:
    batches = [make_batch([9, 7], [0, 3]), make_batch([12], [2], seed=5)]
    seen: list[float] = []
    both = measure_heads(tiny_target(), tiny_draft(), batches, seen.append)
    apart = [measure_heads(tiny_target(), tiny_draft(), [batch]) for batch in batches]
    assert both == apart[0] + apart[1]
    assert seen == [0.5, 1.0]


def test_shares_have_errors_over_texts() -> None:
    ranks = torch.tensor([[[0, 4, 50], [0, 0, 50], [9, 9, 50]]])  # one head, three texts
    found = count_ranks(ranks, torch.ones(3, 5, dtype=torch.bool)[:, :3])
    assert found.positions == ((1,), (1,), (1,))
    share = found.shares(found.forced)[0][0]
    assert share.value == pytest.approx(2 / 3) and share.error == pytest.approx(1 / 3)
    json = found.to_dict()
    assert json["positions"] == [3] and json["top"] == list(TOP) and json["texts"] == 3
    assert json["forced"][0] == pytest.approx([2 / 3] * 4 + [1.0])
    nothing = count_ranks(ranks, torch.zeros(3, 3, dtype=torch.bool))
    assert nothing.shares(nothing.forced)[0][0].value == 0.0


def test_a_text_is_one_with_its_prompt_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetModel, "longest_run", 4096)
    samples = [as_sample([3] * 2100, range(7, 12)), as_sample([3], [4, 5])]
    lengths = [length for batch in text_batches(tiny_target(), samples) for length in batch.lengths.tolist()]
    assert sorted(lengths) == [3, 2105]


def test_prompts_are_not_predicted() -> None:
    samples = [as_sample([3, 4, 5, 6], range(7, 23)), as_sample([3], [4, 5])]
    (batch,) = text_batches(tiny_target(), samples)
    found = measure_heads(tiny_target(), tiny_draft(), [batch])
    assert sorted(count[0] for count in found.positions) == [1, 16]
