"""What a session loads, and what it calls things."""

from pathlib import Path

import pytest

from clover import assets
from clover.errors import UserError
from clover.measure.session import AUTO, DEVELOPMENT, LOOKUP, OWN, PLAIN, Session, choose_prompts
from clover.options import ModelOptions
from tests.packages import describe, install_drafts
from tests.tiny import save_tiny_pair


def test_the_embedded_pair_is_the_default() -> None:
    session = Session.load(ModelOptions(), max_new_tokens=4, max_prompts=3)
    assert (session.target_name, session.draft.name, session.draft.system) == (
        "embedded",
        "embedded",
        "recall",
    )
    assert [prompt.group for prompt in session.prompts] == [DEVELOPMENT] * 3
    every = Session.load(ModelOptions(), None, max_new_tokens=4, max_prompts=1)
    assert [(one.name, one.system) for one in every.drafts] == [(name, name) for name in assets.DRAFTS]


def test_all_drafts_of_a_package_are_called_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = save_tiny_pair(tmp_path, context=2048)
    describe(draft, target)
    options = ModelOptions(target=str(target))
    with pytest.raises(UserError, match="a target was given but no draft"):
        Session.load(options)
    install_drafts(tmp_path / "site", "tiny-drafts", "tiny", {"a": draft, "b": draft}, monkeypatch)
    for drafts, names in (((None,), ["tiny/b"]), (None, ["tiny/a", "tiny/b"])):
        session = Session.load(options, drafts, max_new_tokens=4)
        assert [one.name for one in session.drafts] == names


def test_requests_have_seeds_and_fill_batches(session: Session) -> None:
    requests = session.requests(0.5, seed=3)
    assert [request.params.seed for request in requests] == [3, 4, 5]
    assert [request.prompt for request in requests] == [prompt.tokens for prompt in session.prompts]
    assert {request.max_new_tokens for request in requests} == {8}
    assert [len(batch) for batch in session.batches(2)] == [2, 2]
    assert session.batches(2)[1][1].prompt == requests[0].prompt


def test_engines_of_every_tree(session: Session) -> None:
    assert session.engine(PLAIN).draft is session.engine(LOOKUP).draft is None
    assert session.engine(OWN).policy.max_nodes > session.engine("chain:3").policy.max_nodes == 4
    assert session.engine(AUTO).draft is not None
    with pytest.raises(UserError, match="the tree is 17 deep"):
        session.engine("chain:17")


def test_prompts_that_do_not_fit_are_left_out(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("x" * 300 + "\nimport os\n")
    chosen = choose_prompts([str(file)], session.target, 8, 2)
    assert (len(chosen.prompts), chosen.left_out) == (1, 1)
