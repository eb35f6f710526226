"""Rows that join a running session, in every draft system."""

from __future__ import annotations

import pytest
import torch

from clover.drafts.loading import SYSTEMS
from tests.drafts.checks import make, texts


@pytest.mark.parametrize("system", SYSTEMS)
@torch.no_grad()
def test_a_row_that_joins_and_those_that_it_joins_go_on_as_if_alone(system: str) -> None:
    target, draft = make(SYSTEMS[system])
    tokens, hidden = texts(target, draft, rows=3)
    session, joining = draft.new_session(3, capacity=4), draft.new_session(1, capacity=2)
    session.drop(2)
    session.commit(hidden[:2, :5], tokens[:2, 1:6], [5, 2])
    joining.commit(hidden[2:, :3], tokens[2:, 1:4], [3])
    session.insert(joining)
    ends = [(0, 5, 6), (1, 2, 4), (2, 3, 5)]
    more = torch.stack([hidden[row, start : start + 2] for row, start, _ in ends])
    following = torch.stack([tokens[row, start + 1 : start + 3] for row, start, _ in ends])
    found = session.commit(more, following, [1, 2, 2])
    assert session.lengths == [6, 4, 5]
    for row, _, end in ends:
        alone = draft.new_session(1, capacity=9)
        expected = alone.commit(hidden[row : row + 1, :end], tokens[row : row + 1, 1 : end + 1], [end])
        torch.testing.assert_close(found[row], expected[0])
