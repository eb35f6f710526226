"""The real HTTP server with a draft: the same texts, and three of the metrics that docs/vllm.md names."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from clover import assets


def test_the_http_server_writes_the_same_and_counts(drafts, prompts, plain, tmp_path):
    port = free_port()
    speculative = {"method": "eagle", "model": str(drafts["recall"]), "num_speculative_tokens": 3}
    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(assets.TARGET)),
                *("--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", str(64 << 20)),
                *("--enforce-eager", "--max-num-seqs", "8", "--port", str(port), "--host", "127.0.0.1"),
                *("--served-model-name", "target", "--speculative-config", json.dumps(speculative)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        )
    try:
        wait(server, port, log)
        for prompt, expected in zip(prompts, plain.rounds[0], strict=True):
            made = call(port, "/v1/completions", prompt=prompt, max_tokens=len(expected))
            assert tuple(made["choices"][0]["token_ids"]) == expected
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        counted = {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1])
            for line in metrics.splitlines()
            if line.startswith("vllm:spec_decode_num_")
        }
        assert (
            counted["vllm:spec_decode_num_draft_tokens_total"]
            == 3 * counted["vllm:spec_decode_num_drafts_total"]
        )
        assert counted["vllm:spec_decode_num_accepted_tokens_total"] > 0
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error}: {log.read_text()[-3000:]}") from error
    finally:
        server.terminate()
        server.wait(timeout=60)


def test_the_example_runs(drafts):
    example = Path(__file__).parents[3] / "examples/vllm_offline.py"
    done = subprocess.run(
        [sys.executable, str(example), str(drafts["recall"])],
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "def area(self):" in done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(server: subprocess.Popen, port: int, log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no answer: {log.read_text()[-3000:]}")


def call(port: int, path: str, **body) -> dict:
    fixed = {"model": "target", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(fixed | body).encode(),
        {"Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request, timeout=120))
