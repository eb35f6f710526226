"""What the engine's tests share."""

import pytest


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches have room for the prompts and one step at first, and grow; they shrink when long texts have left."""
    monkeypatch.setattr("clover.engine.decoding._ROOM", 1)
    monkeypatch.setattr("clover.cache._SHORT", 1)
