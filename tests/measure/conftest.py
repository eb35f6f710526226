"""A tiny random target with a chat template, and its untrained draft."""

from pathlib import Path

import pytest

from clover.measure.session import Session
from clover.options import ModelOptions
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of the target and of the draft."""
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def session(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Both, loaded, with three prompts."""
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    prompts.write_text("def area(self):\nimport os\nclass Tree:\n")
    return Session.load(ModelOptions(target=str(tiny_pair[0])), (str(tiny_pair[1]),), prompts, 8)
