"""Servers that tests share: the tiny pair, and the embedded one."""

from collections.abc import Iterator

import openai
import pytest

import clover
from clover.api import Clover
from tests.serve.live import Live, serving
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Clover:
    """Random weights, one byte per token, context 128; every step drafts."""
    target, draft = save_tiny_pair(tmp_path_factory.mktemp("served"))
    return clover.load(str(target), str(draft), tree="clover2")


@pytest.fixture(scope="session")
def live(tiny_model: Clover) -> Iterator[Live]:
    with serving(tiny_model) as server:
        yield server


@pytest.fixture(scope="session")
def embedded() -> Iterator[Live]:
    """The embedded pair, with `auto`."""
    with serving(clover.load()) as server:
        yield server


@pytest.fixture
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
