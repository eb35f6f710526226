"""What the engine's tests share."""

import pytest


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches have room for the prompts and one step at first, and grow."""
    monkeypatch.setattr("clover.engine.decoding._ROOM", 1)
