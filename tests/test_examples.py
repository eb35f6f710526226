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
    assert found == {*SHOWN, "train.py", "openai_client.py", "answers.py", "agent.py", "vllm_offline.py"}


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


@pytest.mark.long
def test_the_clients_of_a_server(run, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    import clover
    from tests.serve.live import serving

    asked = [{"role": "user", "content": "def close(self):"}, {"role": "assistant", "content": "old"}]
    too_long = [{"role": "user", "content": "x = 1\n" * 1000}]
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(json.dumps({"messages": one}) + "\n" for one in (asked, too_long, asked)))
    with serving(clover.load()) as server:
        assert "mean_acceptance_length" in run("openai_client.py", server.url)
        run("answers.py", server.url, prompts, answers)
    records = [json.loads(line)["messages"] for line in answers.read_text().splitlines()]
    assert [[one["role"] for one in record] for record in records] == [["user", "assistant"]] * 2
    assert all(record[1]["content"] not in ("", "old") for record in records)


def test_an_agent_calls_a_function_and_answers_with_its_result(run) -> None:
    pytest.importorskip("openai")
    from tests.scripted import QWEN, scripted
    from tests.serve.live import serving

    def answer(prompt: str) -> str:
        assert "Multiply two numbers." in prompt
        if "<tool_response>" in prompt:
            return f"It is {prompt.split('<tool_response>')[1].split('<')[0]}."
        return '<tool_call>{"name": "multiply", "arguments": {"a": 12.5, "b": 64}}</tool_call>'

    with serving(scripted(QWEN, answer)) as server:
        assert run("agent.py", server.url) == "multiply(12.5, 64) = 800.0\nIt is 800.0.\n"
