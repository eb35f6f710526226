"""vLLM's settings for these tests, which `make test-vllm` runs in an environment of their own."""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, where the tests can look into it
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_HOST_IP="127.0.0.1",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
    OMP_WAIT_POLICY="PASSIVE",  # threads that spin at barriers take minutes where other processes run beside them
)
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")

if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1":  # it asks for a distribution called vllm
    _named = Path(tempfile.mkdtemp()) / "vllm-0.32.0.dist-info"
    _named.mkdir()
    (_named / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    sys.path.insert(0, str(_named.parent))
    os.environ["PYTHONPATH"] = str(_named.parent)  # of the process in which vLLM looks at a new architecture

import json

import pytest

from clover import assets
from clover.integrations.export import export
from clover.target import TargetModel
from tests.integrations.vllm.engine import SYSTEMS, Served, serve


@pytest.fixture(scope="session")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The embedded drafts as vLLM loads them."""
    places = {system: tmp_path_factory.mktemp("drafts") / system for system in SYSTEMS}
    for system, place in places.items():
        export("vllm", system, place)
    return places


@pytest.fixture(scope="session")
def target() -> TargetModel:
    """The embedded target in this project's own engine."""
    return TargetModel.load(assets.TARGET, "float32")


@pytest.fixture(scope="session")
def prompts(target: TargetModel) -> list[list[int]]:
    """Three short prompts and three of more than one block of the cache, all of different lengths."""
    texts = ["def fibonacci(n):\n", "import os\n\ndef read_file(path):\n", "class Stack:\n"]
    texts += [text[:700] for text in json.loads(assets.HELD_OUT_PROMPTS.read_text())["prompts"][:3]]
    assert target.tokenizer is not None
    return [target.tokenizer.encode(text) for text in texts]


@pytest.fixture(scope="session")
def plain(prompts: list[list[int]]) -> Served:
    """What vLLM writes without speculation."""
    return serve(prompts)
