"""What the engine's tests share."""

import pytest

from clover.cache import KVCache


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches shrink when long texts have left; with `EngineLimits(new_tokens=1)` they grow, too."""
    monkeypatch.setattr(KVCache, "short", 1)
