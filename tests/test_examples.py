"""Every file of examples/ runs, and is short. tests/integrations/vllm runs vllm_offline.py, which needs vLLM."""

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ALL = sorted(EXAMPLES.glob("*.py"))
SHOWN = {
    "generate.py": "accepted at each depth: [",
    "stream.py": "def area(self):\n",
    "batch.py": "def write(self):\n",
    "transformers_generate.py": "the same as without a draft: True",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example with these arguments; returns what it prints."""

    def call(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_each_is_run_by_a_test() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert found == {*SHOWN, "train.py", "openai_client.py", "vllm_offline.py"}


def test_they_are_short() -> None:
    assert all(path.read_text(encoding="utf-8").count("\n") <= 40 for path in ALL)


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_it_runs(run, name: str, shown: str) -> None:
    assert shown in run(name)


def test_training(run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "".join(json.dumps({"text": f"def f_{i}(x):\n    return x + {i}\n"}) + "\n" for i in range(99))
    )
    assert run("train.py", texts, tmp_path / "draft", 0.01)
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_the_client_of_a_server(run) -> None:
    pytest.importorskip("openai")
    import clover
    from tests.serve.live import serving

    with serving(clover.load()) as server:
        assert "mean_acceptance_length" in run("openai_client.py", server.url)
