import pytest
import torch

from clover.data import Batches, Sample, fingerprint, split_samples
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


def test_a_batch_depends_on_samples_seed_and_number_alone(samples: list[Sample]) -> None:
    def batch(number: int, seed: int, fresh: Batches | None = None) -> list[list[int]]:
        return (fresh or Batches(samples, 40, 200, seed))[number].tokens.tolist()

    walked = Batches(samples, 40, 200, seed=1)
    per_epoch = walked.epoch_length()
    numbers = [0, 5, per_epoch, 3 * per_epoch + 2]
    assert [batch(n, 1, walked) for n in numbers] == [batch(n, 1) for n in reversed(numbers)][::-1]
    assert batch(0, 1) != batch(0, 2)
    assert batch(0, 1, walked) != batch(walked.epoch_length(), 1, walked)


def test_epochs_follow_one_another(samples: list[Sample]) -> None:
    batches = Batches(samples, 40, 200, seed=1)
    numbers = range(batches.epoch_length(0) + batches.epoch_length(1))
    walked = [batches[n].tokens.tolist() for n in numbers]
    assert walked == [b.tokens.tolist() for b in batches.epoch(0) + batches.epoch(1)]


def test_windows_without_a_token_to_learn_are_left_out() -> None:
    batches = Batches([sample(20, learnt_from=12), sample(10, start=100, learnt_from=9)], 10, 10, seed=0)
    starts = sorted(int(batches[n].tokens[0, 0]) for n in range(batches.epoch_length()))
    assert starts == [10, 100]


@pytest.mark.parametrize(("max_length", "batch_tokens"), [(2, 10), (11, 10)])
def test_impossible_sizes_are_refused(max_length: int, batch_tokens: int) -> None:
    with pytest.raises(UserError, match="max_length"):
        Batches([sample(5)], max_length, batch_tokens, seed=0)


def test_texts_that_are_too_short_are_refused() -> None:
    with pytest.raises(UserError, match="no text is long enough"):
        Batches([sample(2), sample(9, learnt_from=9)], 10, 10, seed=0)


def test_the_split_is_by_content(samples: list[Sample]) -> None:
    train, validation = split_samples(samples, 0.2)
    assert 20 < len(validation) < 60
    assert len(train) + len(validation) == len(samples)
    again = split_samples(samples[::-1] + samples[:1], 0.2)
    assert {id(s) for s in again[1]} == {id(s) for s in validation}
    assert split_samples(samples, 0.0) == (samples, [])
    assert split_samples(samples[:1], 1.0) == (samples[:1], [])


def test_the_fingerprint_sees_tokens_and_masks(samples: list[Sample]) -> None:
    other = [Sample(samples[0].tokens, ~samples[0].loss_mask), *samples[1:]]
    prints = {fingerprint(s) for s in (samples, samples[1:], other)}
    assert len(prints) == 3
    assert fingerprint(samples) == fingerprint(list(samples))
