"""Sessions of a target: trees and text on top of ragged texts, and rows that come and go."""

import pytest
import torch

from clover.target import Target, TargetModel, TargetSession, TargetWeights
from clover.tree import TokenTree
from tests.families import FAMILIES, PARENTS, VOCAB, tiny_model

EXACT = {"rtol": 1e-6, "atol": 1e-8}
LENGTHS = [5, 2, 3]


@pytest.fixture
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


def opened(target: Target, texts: torch.Tensor, lengths: list[int]) -> TargetSession:
    session = target.open(len(texts), 4)
    output = session.run(texts, logits=False)
    assert output.logits is None and output.draft_hidden_states.shape[:2] == texts.shape
    session.commit(lengths)
    assert session.lengths == lengths
    return session


def next_logits(target: TargetModel, text: list[int]) -> torch.Tensor:
    return target.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]


def test_the_model_has_what_drafts_and_training_share(target: TargetModel) -> None:
    weights: TargetWeights = target
    layer = dict(target.layers[-1].named_parameters())
    assert dict(weights.last_layer.named_parameters()) == layer
    assert weights.state_dict().keys() == target.model.state_dict().keys()
    assert weights.described_config()["architectures"] == ["LlamaForCausalLM"]
    assert "_name_or_path" not in weights.described_config()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_sees_text_and_ancestors_and_keeps_the_path(family: str) -> None:
    target = TargetModel(tiny_model(family))
    texts = torch.randint(VOCAB, (3, 5))
    session = opened(target, texts, LENGTHS)
    nodes = torch.randint(VOCAB, (3, len(PARENTS)))
    tree = TokenTree.from_parents(nodes, torch.tensor([PARENTS] * 3))
    logits = session.run(tree).logits
    assert logits is not None
    path = [int(node) for node in tree.ancestor_mask[0, -1].nonzero().flatten()]
    kept = [[*texts[row, :length].tolist(), *nodes[row, path].tolist()] for row, length in enumerate(LENGTHS)]
    for row, text in enumerate(kept):
        torch.testing.assert_close(logits[row, -1], next_logits(target, text), **EXACT)
    session.keep(torch.tensor([path] * 3), [len(path)] * 3)
    root = torch.tensor([[7], [8], [9]])
    logits = session.run(TokenTree.root_only(root), "pre_norm").logits
    assert logits is not None
    for row, text in enumerate(kept):
        torch.testing.assert_close(logits[row, 0], next_logits(target, [*text, 7 + row]), **EXACT)


def test_padding_may_reach_beyond_the_context(target: TargetModel) -> None:
    most = target.longest_run
    session = opened(target, torch.randint(VOCAB, (1, most - 2)), [most - 2])
    text = torch.randint(VOCAB, (1, 5))
    padded = session.run(text).logits
    assert padded is not None
    torch.testing.assert_close(padded[:, :2], session.run(text[:, :2]).logits, **EXACT)


def test_rows_are_dropped_copied_filled_and_inserted(target: TargetModel) -> None:
    texts = torch.randint(VOCAB, (3, 5))
    session = opened(target, texts, LENGTHS)
    copied = session.copy_row(0, 4)
    assert copied.lengths == [4] and session.row_bytes(4) == 4 * session.row_bytes(1) > 0
    session.drop(1)
    assert session.lengths == [5, 3]
    fresh = target.open(2, 1)
    fresh.fill_row(1, copied, 3)
    fresh.drop(0)
    session.insert(fresh)
    session.crop([2, 3, 3])
    with session.first_rows(1):
        assert session.lengths == [2]
    kept = [texts[0, :2], texts[2, :3], texts[0, :3]]
    logits = session.run(TokenTree.root_only(torch.tensor([[7], [8], [9]]))).logits
    assert logits is not None
    for row, text in enumerate(kept):
        torch.testing.assert_close(logits[row, 0], next_logits(target, [*text.tolist(), 7 + row]), **EXACT)
