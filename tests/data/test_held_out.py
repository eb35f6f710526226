"""Which texts are held out: by their content, and one of few."""

from collections.abc import Sequence

import pytest
import torch

from clover.data import HeldOut, Record, Sample, SampleTexts, choose_held_out


def sample(length: int, start: int = 0) -> Sample:
    tokens = torch.arange(start, start + length, dtype=torch.int32)
    return Sample(tokens, torch.ones(length, dtype=torch.bool))


@pytest.fixture
def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 90, (200,), generator=generator).tolist()
    return [sample(length, start=100 * i) for i, length in enumerate(lengths)]


def test_what_is_held_out_is_chosen_by_content(samples: list[Sample]) -> None:
    chosen = [HeldOut(0.2)(s) for s in samples]
    assert 20 < sum(chosen) < 60
    assert [HeldOut(0.2)(Sample(s.tokens.clone(), s.loss_mask.clone())) for s in samples] == chosen
    assert not any(map(HeldOut(0.0), samples)) and all(map(HeldOut(1.0), samples))


def test_of_few_texts_the_one_of_the_lowest_hash_is_held_out(samples: list[Sample]) -> None:
    few = [one for one in samples if not HeldOut(0.02)(one)][:5]
    held = choose_held_out(SampleTexts(few), 0.02, 40)
    assert held is not None
    (found,) = filter(held, few)
    assert found.digest() == min(one.digest() for one in few)
    again = choose_held_out(SampleTexts(few[::-1]), 0.02, 40)
    assert again is not None and again(found) and sum(map(again, few)) == 1


def test_where_the_share_holds_a_text_no_other_is_held_out(samples: list[Sample]) -> None:
    held = choose_held_out(SampleTexts(samples), 0.2, 40)
    assert held is not None
    assert list(map(held, samples)) == list(map(HeldOut(0.2), samples))


def test_something_is_left_to_learn(samples: list[Sample]) -> None:
    one = samples[0]
    assert choose_held_out(SampleTexts([one]), 0.02, 40) is None
    assert choose_held_out(SampleTexts([one, one]), 0.02, 40) is None
    assert choose_held_out(SampleTexts([]), 0.02, 40) is None
    assert choose_held_out(SampleTexts(samples), 0.0, 40) is None


def test_a_text_from_which_nothing_is_learnt_is_neither_held_out_nor_left_alone() -> None:
    short = [Sample(torch.tensor([token]), torch.ones(1, dtype=torch.bool)) for token in range(30)]
    short = [one for one in short if not HeldOut(0.02)(one)]
    useful = [one for one in (sample(9), sample(12), sample(15)) if not HeldOut(0.02)(one)]
    assert choose_held_out(SampleTexts([*short, useful[0]]), 0.02, 40) is None
    held = choose_held_out(SampleTexts([*short, *useful]), 0.02, 40)
    assert held is not None and sum(map(held, useful)) == 1 and not any(map(held, short))


def test_a_share_that_cannot_be_measured_is_not_held_out_alone(samples: list[Sample]) -> None:
    learnt = [one for one in samples if not HeldOut(0.02)(one)]
    short = [Sample(torch.tensor([token, token]), torch.ones(2, dtype=torch.bool)) for token in range(300)]
    short = [one for one in short if HeldOut(0.02)(one)]
    assert short
    held = choose_held_out(SampleTexts([*short, *learnt]), 0.02, 40)
    assert held is not None and sum(map(held, learnt)) == 1 and not any(map(held, short))


def test_a_share_that_holds_all_that_can_be_learnt_is_not_held_out(samples: list[Sample]) -> None:
    useful = [one for one in samples if HeldOut(0.02)(one)]
    assert useful
    assert choose_held_out(SampleTexts([*useful, sample(2)]), 0.02, 40) is None


def test_where_nothing_can_be_learnt_a_thousand_texts_are_enough_to_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clover.data.held_out._MOST_TRIED", 10)
    every = torch.ones(1, dtype=torch.bool)
    short = Encoding([Sample(torch.tensor([token]), every) for token in range(200)])
    assert choose_held_out(short, 0.5, 40) is None
    assert short.encoded == 10


def test_texts_are_read_once_and_no_further_than_it_takes(samples: list[Sample]) -> None:
    texts = Encoding(samples)
    held = choose_held_out(texts, 0.2, 40)
    assert held is not None and sorted(set(texts.rows)) == texts.rows == list(range(len(texts.rows)))
    assert len(texts.rows) < 50 and texts.encoded < 20


class Encoding(SampleTexts):
    """Texts that record which rows are read, and how many are tokenized."""

    def __init__(self, samples: list[Sample]):
        super().__init__(samples)
        self.rows: list[int] = []
        self.encoded = 0

    def __getitem__(self, row: int) -> Sample:
        self.rows.append(row)
        return super().__getitem__(row)

    def encode(self, texts: Sequence[Record | Sample]) -> list[Sample]:
        self.encoded += len(texts)
        return super().encode(texts)
