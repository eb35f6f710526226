"""Which nodes a draft's own tree should have: those that are most often on the accepted path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from clover.engine import Engine, Request
from clover.tune.ranks import RankPath, rank_texts
from clover.tune.shapes import count_starts, most_frequent
from clover.tune.texts import write_texts


def likely_paths(engine: Engine, requests: Sequence[Request]) -> list[RankPath]:
    """Rank paths, most often accepted first; any number of them from the front is a tree (`TreeShape.from_paths`)."""
    draft = engine.draft
    assert draft is not None, "plain decoding has no tree"
    paths = rank_texts(engine.target, draft, requests, write_texts(engine, requests))
    return most_frequent(count_starts(chain.from_iterable(paths)))
