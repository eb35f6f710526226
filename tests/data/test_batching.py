import pytest
import torch

from clover.data import Batches, Position, Sample, SampleTexts, batching, fingerprint, held_out, held_out_of
from clover.errors import UserError


def sample(length: int, start: int = 0, learnt_from: int = 0) -> Sample:
    tokens = torch.arange(start, start + length, dtype=torch.int32)
    return Sample(tokens, torch.arange(length) >= learnt_from)


@pytest.fixture
def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 90, (200,), generator=generator).tolist()
    return [sample(length, start=100 * i) for i, length in enumerate(lengths)]


def test_an_epoch_holds_every_token_once(samples: list[Sample]) -> None:
    batches = Batches(samples, max_length=40, batch_tokens=200, seed=1)
    expected = torch.cat([s.tokens for s in samples]).tolist()
    lost = {int(t) for s in samples for t in s.tokens[len(s.tokens) // 40 * 40 :] if len(s.tokens) % 40 < 3}
    for epoch in (0, 1):
        tokens = [b.tokens[row, :n].tolist() for b in batches.epoch(epoch) for row, n in enumerate(b.lengths)]
        flat = sorted(t for row in tokens for t in row)
        assert flat == [t for t in expected if t not in lost]


def test_batches_are_right_padded_and_within_bounds(samples: list[Sample]) -> None:
    batches = Batches(samples, max_length=40, batch_tokens=200, seed=1)
    total = padding = 0
    for batch in batches.epoch():
        assert batch.tokens.shape == batch.predicted_mask.shape
        assert batch.tokens.numel() <= 200
        assert batch.tokens.shape[1] == batch.lengths.max() <= 40
        real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        assert not batch.predicted_mask[~real].any()
        assert not batch.tokens[~real].any()
        total, padding = total + real.numel(), padding + int((~real).sum())
    assert padding < 0.05 * total


def tokens_at(batches: Batches, position: Position, count: int = 1) -> list[list[list[int]]]:
    batches.position = position
    return [next(batches).tokens.tolist() for _ in range(count)]


def test_what_comes_at_a_position_depends_on_samples_and_seed_alone(samples: list[Sample]) -> None:
    walked, places = Batches(samples, 40, 200, seed=1), []
    seen = []
    for _ in range(100):
        places.append(walked.position)
        seen.append(next(walked).tokens.tolist())
    assert walked.position.epoch >= 2
    for i in (70, 0, 30):
        assert tokens_at(Batches(samples, 40, 200, seed=1), places[i], 20) == seen[i : i + 20]
    assert tokens_at(Batches(samples, 40, 200, seed=2), Position()) != seen[:1]
    assert tokens_at(walked, Position(epoch=1)) != seen[:1]


def test_epochs_follow_one_another_and_are_counted(
    samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 30)
    batches = Batches(samples, 40, 200, seed=1)
    expected = [b.tokens.tolist() for epoch in (0, 1) for b in batches.epoch(epoch)]
    passes = []
    for tokens in expected:
        passes.append(batches.epochs)
        assert next(batches).tokens.tolist() == tokens
    assert passes == sorted(passes) and len(set(passes)) == len(passes)
    assert (passes[0], batches.epochs) == (0.0, 2.0)


def test_texts_are_loaded_block_by_block(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = SampleTexts.load
    monkeypatch.setattr(SampleTexts, "load", lambda self, row: (loaded.append(row), load(self, row))[1])
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 10)
    next(Batches(samples, 40, 200, seed=1))
    assert len(loaded) <= 20


def test_what_an_epoch_has_read_first_is_not_read_again(
    samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = SampleTexts.load
    monkeypatch.setattr(SampleTexts, "load", lambda self, row: (loaded.append(row), load(self, row))[1])
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 10)
    batches = Batches(samples, 40, 200, seed=1)
    first = next(batches.epoch())
    assert next(batches).tokens.tolist() == first.tokens.tolist()
    assert loaded.count(loaded[0]) == 1


def test_a_side_takes_its_texts_alone(samples: list[Sample]) -> None:
    held = held_out(0.2)
    batches = Batches(samples, 100, 200, seed=0, side=held).epoch()
    starts = {int(row[0]) // 100 for batch in batches for row in batch.tokens}
    assert starts == {i for i, s in enumerate(samples) if held(s)}


def test_windows_without_a_token_to_learn_are_left_out() -> None:
    batches = Batches([sample(20, learnt_from=12), sample(10, start=100, learnt_from=9)], 10, 10, seed=0)
    assert sorted(int(batch.tokens[0, 0]) for batch in batches.epoch()) == [10, 100]


def test_windows_are_long_enough_to_learn_from() -> None:
    with pytest.raises(UserError, match="max_length is 2; it must be at least 3"):
        Batches([sample(5)], 2, 10, seed=0)


def test_a_window_longer_than_a_batch_is_a_batch() -> None:
    batches = Batches([sample(9), sample(3), sample(4)], 9, 8, seed=0)
    assert sorted(tuple(batch.tokens.shape) for batch in batches.epoch()) == [(1, 9), (2, 4)]


def test_texts_that_are_too_short_are_refused() -> None:
    with pytest.raises(UserError, match="no text is long enough"):
        next(Batches([sample(2), sample(9, learnt_from=9)], 10, 10, seed=0))
    with pytest.raises(UserError, match="no text is long enough"):
        next(Batches([], 10, 10, seed=0))


def test_what_is_held_out_is_chosen_by_content(samples: list[Sample]) -> None:
    chosen = [held_out(0.2)(s) for s in samples]
    assert 20 < sum(chosen) < 60
    assert [held_out(0.2)(Sample(s.tokens.clone(), s.loss_mask.clone())) for s in samples] == chosen
    assert not any(map(held_out(0.0), samples)) and all(map(held_out(1.0), samples))


def test_of_few_texts_the_one_of_the_lowest_hash_is_held_out(samples: list[Sample]) -> None:
    few = [one for one in samples if not held_out(0.02)(one)][:5]
    held = held_out_of(SampleTexts(few), 0.02, 40)
    assert held is not None
    (found,) = filter(held, few)
    assert found.digest() == min(one.digest() for one in few)
    again = held_out_of(SampleTexts(few[::-1]), 0.02, 40)
    assert again is not None and again(found) and sum(map(again, few)) == 1


def test_where_the_share_holds_a_text_no_other_is_held_out(samples: list[Sample]) -> None:
    held = held_out_of(SampleTexts(samples), 0.2, 40)
    assert held is not None
    assert list(map(held, samples)) == list(map(held_out(0.2), samples))


def test_something_is_left_to_learn(samples: list[Sample]) -> None:
    one = samples[0]
    assert held_out_of(SampleTexts([one]), 0.02, 40) is None
    assert held_out_of(SampleTexts([one, one]), 0.02, 40) is None
    assert held_out_of(SampleTexts([]), 0.02, 40) is None
    assert held_out_of(SampleTexts(samples), 0.0, 40) is None


def test_a_text_from_which_nothing_is_learnt_is_neither_held_out_nor_left_alone() -> None:
    short = [Sample(torch.tensor([token]), torch.ones(1, dtype=torch.bool)) for token in range(30)]
    short = [one for one in short if not held_out(0.02)(one)]
    useful = [one for one in (sample(9), sample(12), sample(15)) if not held_out(0.02)(one)]
    assert held_out_of(SampleTexts([*short, useful[0]]), 0.02, 40) is None
    held = held_out_of(SampleTexts([*short, *useful]), 0.02, 40)
    assert held is not None and sum(map(held, useful)) == 1 and not any(map(held, short))


def test_a_share_that_cannot_be_measured_is_not_held_out_alone(samples: list[Sample]) -> None:
    learnt = [one for one in samples if not held_out(0.02)(one)]
    short = [Sample(torch.tensor([token, token]), torch.ones(2, dtype=torch.bool)) for token in range(300)]
    short = [one for one in short if held_out(0.02)(one)]
    assert short
    held = held_out_of(SampleTexts([*short, *learnt]), 0.02, 40)
    assert held is not None and sum(map(held, learnt)) == 1 and not any(map(held, short))


def test_a_share_that_holds_all_that_can_be_learnt_is_not_held_out(samples: list[Sample]) -> None:
    useful = [one for one in samples if held_out(0.02)(one)]
    assert useful
    assert held_out_of(SampleTexts([*useful, sample(2)]), 0.02, 40) is None


def test_where_nothing_can_be_learnt_a_thousand_texts_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 10)
    short = SampleTexts(
        [Sample(torch.tensor([token]), torch.ones(1, dtype=torch.bool)) for token in range(200)]
    )
    tried: list[object] = []
    monkeypatch.setattr(short, "encode", lambda texts: tried.extend(texts) or list(texts))
    held_out_of(short, 0.5, 40)
    assert len(tried) == 20


def test_the_fingerprint_sees_tokens_and_masks(samples: list[Sample]) -> None:
    other = [Sample(samples[0].tokens, ~samples[0].loss_mask), *samples[1:]]
    prints = {fingerprint(s) for s in (samples, samples[1:], other)}
    assert len(prints) == 3
    assert fingerprint(samples) == fingerprint(list(samples))
