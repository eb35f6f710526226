from pathlib import Path

import pytest

from tests.tiny import save_tiny_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a random target with a chat template, and of its untrained draft."""
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))
