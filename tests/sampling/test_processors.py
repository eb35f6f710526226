"""Processors of the caller's own see at every node the text of plain decoding, in batches that rows join and leave."""

import torch
from torch import Tensor

from clover.drafts import Clover2Draft
from clover.engine import Engine, Request
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.families import tiny_model


def repeated_never(texts: Tensor, scores: Tensor) -> Tensor:
    """Bans the last three tokens of the text."""
    return scores.scatter(1, texts[:, -3:], -torch.inf)


def by_sum(texts: Tensor, scores: Tensor) -> Tensor:
    """Favours the tokens that the sum of the whole text says."""
    places = torch.arange(scores.shape[1]) + texts.sum(1, keepdim=True)
    return scores + 2.0 * (places % 5 == 0)


def test_the_text_is_that_of_plain_decoding() -> None:
    torch.manual_seed(0)
    target = TargetModel(tiny_model("llama"))
    draft = Clover2Draft.from_target(target, num_augmenting_layers=1, num_heads=5).to(target.dtype).eval()
    chosen = (None, by_sum, repeated_never, by_sum)
    params = [SamplingParams(temperature=float(i % 2), seed=i, process=one) for i, one in enumerate(chosen)]
    requests = [Request((5 + i, 9, 33), 8 + 5 * i, one, eos=()) for i, one in enumerate(params)]

    def texts(engine: Engine, rows: int) -> dict[int, tuple[int, ...]]:
        events = engine.run(requests, max_sequences=rows)
        return {event.index: event.generation.tokens for event in events if event.generation}

    plain = texts(Engine(target), 1)
    assert texts(Engine(target, draft, "clover2"), 2) == plain
    assert all(len({*plain[2][at : at + 4]}) == 4 for at in range(len(plain[2]) - 3))
