"""The benchmark clients of the field run against the server: bodies as their sources write them, guidellm, and vLLM's.

Bodies are those of guidellm 0.8.1 (backends/openai/request_handlers.py), of vLLM's `bench serve` (2026-11,
benchmarks/lib/endpoint_request_func.py) and of genai-perf 0.0.16 (inputs/converters). The last one is too heavy to be
installed for a test: it needs Triton's perf_analyzer. vLLM's client runs where `make test-vllm` has installed it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.live import NAME, Live

TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
PARTS = [{"role": "user", "content": [{"type": "text", "text": "abc abc"}]}]
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "guidellm, text": (
        TEXTS,
        {"prompt": "abc", "max_tokens": 9, "stop": None, "ignore_eos": True, "stream_options": CONTINUOUS},
    ),
    "guidellm, both limits": (
        TEXTS,
        {"prompt": "abc", "max_tokens": 9, "max_completion_tokens": 9, "ignore_eos": True, "stop": None}
        | {"stream_options": CONTINUOUS},
    ),
    "guidellm, chat": (
        CHATS,
        {"messages": PARTS, "max_completion_tokens": 9, "stop": None, "ignore_eos": True}
        | {"stream_options": CONTINUOUS},
    ),
    "vllm bench serve, text": (
        TEXTS,
        {"prompt": "abc", "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": None, "ignore_eos": True}
        | {"stream_options": {"include_usage": True}, "temperature": 0.0},
    ),
    "vllm bench serve, chat": (
        CHATS,
        {"messages": PARTS, "max_completion_tokens": 9, "ignore_eos": True, "min_tokens": 9}
        | {"stream_options": {"include_usage": True}},
    ),
    "genai-perf, chat": (
        CHATS,
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 9,
            "min_tokens": 9,
            "ignore_eos": True,
        }
        | {"stream_options": {"include_usage": True}},
    ),
    "genai-perf, text": (
        TEXTS,
        {"prompt": ["abc"], "max_tokens": 9, "min_tokens": 9, "stream_options": {"include_usage": True}},
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_their_bodies_are_answered_with_as_many_tokens_as_they_ask_for(live: Live, kind: str) -> None:
    path, body = BODIES[kind]
    chunks = live.events(path, {"model": NAME, "seed": 0, **body})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 9
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
    if body["stream_options"] is CONTINUOUS:
        counts = [c["usage"]["completion_tokens"] for c in chunks if "usage" in c]
        assert counts == sorted(counts) and counts[-2:] == [9, 9] and counts[0] < 9
        assert {c["usage"]["prompt_tokens"] for c in chunks if "usage" in c} == {
            chunks[-1]["usage"]["prompt_tokens"]
        }


def test_min_tokens_keeps_a_text_from_ending(live: Live) -> None:
    """Also in a tree, where several tokens of a step lie on both sides of the bound."""
    ends = live.service.tokenizer.eos_token_id
    body = {"prompt": "abc abc", "max_tokens": 20, "logit_bias": {str(ends): 100}, "temperature": 0}
    for least in (0, 1, 7):
        _, answer = live.post(TEXTS, body | {"min_tokens": least})
        assert answer["usage"]["completion_tokens"] == least + 1
        plain = live.post(TEXTS, body | {"min_tokens": least, "speculation": False})[1]
        assert plain["choices"][0]["text"] == answer["choices"][0]["text"]


@pytest.mark.parametrize("change", [{"min_tokens": 21}, {"min_tokens": 2, "stop": "x"}, {"min_tokens": -1}])
def test_a_least_length_that_cannot_be_kept_is_refused(live: Live, change: dict[str, Any]) -> None:
    status, answer = live.post(TEXTS, {"prompt": "abc", "max_tokens": 20} | change)
    assert (status, answer["error"]["param"]) == (400, "min_tokens")


# What guidellm 0.8.1 needs beside the packages that are here anyway; pip would also replace PyTorch.
GUIDELLM = [
    *(
        "guidellm==0.8.1",
        "aiofiles",
        "aiologic",
        "click",
        "culsans",
        "eval-type-backport",
        "faker",
        "ftfy",
        "h2",
    ),
    *(
        "hpack",
        "html5tagger",
        "httpcore2",
        "httptools",
        "httpx2",
        "hyperframe",
        "loguru",
        "more-itertools",
        "msgpack",
    ),
    *(
        "multidict",
        "protobuf",
        "pydantic-settings",
        "python-dotenv",
        "sanic",
        "sanic-routing",
        "sniffio",
        "tabulate",
    ),
    *("tracerite", "truststore", "tzdata", "uvloop", "wcwidth", "websockets", "wrapt"),
]


@pytest.fixture(scope="session")
def guidellm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that can import guidellm, which is installed where nothing else is."""
    place = tmp_path_factory.mktemp("guidellm")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", place, *GUIDELLM]
    if subprocess.run(install).returncode != 0:
        pytest.skip("guidellm cannot be installed here")
    return os.environ | {"PYTHONPATH": str(place)}


@pytest.mark.long
@pytest.mark.parametrize("path", [TEXTS, CHATS])
def test_guidellm_runs(live: Live, tmp_path: Path, guidellm: dict[str, str], path: str) -> None:
    live.service.tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = {
        "--backend": f"kind=openai_http,target={live.url},model={NAME},request_format={path}",
        "--profile": "kind=synchronous",
        "--constraint": "kind=max_requests,count=3",
        "--tokenizer": f"kind=huggingface_auto,model={tmp_path}/tokenizer",
        "--data": "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "--output": f"kind=json,path={tmp_path}/found.json",
    }
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += [word for pair in options.items() for word in pair]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=guidellm)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stderr.splitlines() if " completed | " in line]
    assert "successful=3 errored=0 incomplete=0" in line


VLLM = Path(__file__).parents[2] / ".venv-vllm/bin/python"
BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.long
@pytest.mark.parametrize(("backend", "path"), [("openai-chat", CHATS), ("openai", TEXTS), ("vllm", TEXTS)])
def test_vllms_bench_serve_runs(live: Live, tmp_path: Path, backend: str, path: str) -> None:
    if not VLLM.exists():
        pytest.skip("vLLM is not installed; make test-vllm installs it")
    live.service.tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = {
        "--backend": backend,
        "--endpoint": path,
        "--base-url": live.url,
        "--model": NAME,
        "--tokenizer": f"{tmp_path}/tokenizer",
        "--dataset-name": "random",
        "--random-input-len": "20",
        "--random-output-len": "8",
        "--num-prompts": "3",
    }
    command = [str(VLLM), "-c", BENCH_SERVE, *(word for pair in options.items() for word in pair)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {
        line.partition(":")[0].strip(): line.split()[-1] for line in done.stdout.splitlines() if ":" in line
    }
    assert (found["Successful requests"], found["Failed requests"]) == ("3", "0")
    assert found["Total generated tokens"] == "24"
