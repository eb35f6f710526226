import pytest
import torch

from clover.data import Batches, HeldOut, Position, Sample, SampleTexts, batching, fingerprint
from clover.data.batching import first_batches
from clover.errors import UserError


def sample(length: int, start: int = 0, learnt_from: int = 0) -> Sample:
    tokens = torch.arange(start, start + length, dtype=torch.int32)
    return Sample(tokens, torch.arange(length) >= learnt_from)


class Counting(SampleTexts):
    """Texts that record which of their rows are read."""

    def __init__(self, samples: list[Sample]):
        super().__init__(samples)
        self.rows: list[int] = []

    def __getitem__(self, row: int) -> Sample:
        self.rows.append(row)
        return super().__getitem__(row)


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
    texts = Counting(samples)
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 10)
    next(Batches(texts, 40, 200, seed=1))
    assert len(texts.rows) <= 20


def test_no_more_texts_are_read_than_a_small_block_takes(samples: list[Sample]) -> None:
    texts = Counting(samples)
    some = list(first_batches(Batches(texts, 40, 200, seed=0, block_size=300).epoch(), 300))
    assert sum(batch.tokens.numel() for batch in some) >= 300 and len(texts.rows) < len(samples) / 5


def test_going_back_within_a_block_reads_nothing_again(
    samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_BLOCK_TEXTS", 10)
    texts = Counting(samples)
    batches = Batches(texts, 40, 200, seed=1)
    first = next(batches)
    batches.position = Position()
    assert next(batches).tokens.tolist() == first.tokens.tolist()
    assert texts.rows.count(texts.rows[0]) == 1


def test_a_side_takes_its_texts_alone(samples: list[Sample]) -> None:
    held = HeldOut(0.2)
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


def test_the_fingerprint_sees_tokens_and_masks(samples: list[Sample]) -> None:
    other = [Sample(samples[0].tokens, ~samples[0].loss_mask), *samples[1:]]
    prints = {fingerprint(s) for s in (samples, samples[1:], other)}
    assert len(prints) == 3
    assert fingerprint(samples) == fingerprint(list(samples))
