"""Put `clover serve` under load: speed against the engine itself, a long mixed run, clients that vanish, a kill.

    python benchmarks/serving.py speed                 # tokens/s at 8 and 32 streams, divided by the engine's own
    python benchmarks/serving.py mixed --minutes 10    # 64 streams of mixed length: errors, stalls, equality
    python benchmarks/serving.py vanish                # 1,000 clients that disconnect at random
    python benchmarks/serving.py kill                  # kill -9 in the middle of work, and start again

Prints a card and one JSON line. The server is a process of its own, at its defaults, on the embedded pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from urllib.request import urlopen

HOST = "127.0.0.1"


class Server:
    """`clover serve` in a process of its own."""

    def __init__(self, *options: str):
        command = [sys.executable, "-m", "clover", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r":(\d+)/v1", line)
        assert found, line + self.process.stderr.read()
        self.port = int(found[1])

    def metrics(self) -> dict[str, float]:
        """All samples of GET /metrics."""
        text = urlopen(f"http://{HOST}:{self.port}/metrics").read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    @property
    def memory(self) -> float:
        """Resident MiB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024  # type: ignore[index]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@dataclass
class Answer:
    """One streamed answer: its text, when its pieces came, and what the server said of it at the end."""

    text: str = ""
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None


async def ask(port: int, body: dict[str, Any], vanish: float | None = None) -> Answer:
    """Stream one completion; close the connection after `vanish` seconds, if given."""
    answer = Answer()
    said = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(said)}"
    writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + said)
    try:
        await asyncio.wait_for(_read(reader, answer), vanish)
    except asyncio.TimeoutError:
        pass
    except OSError as error:
        answer.error = repr(error)
    finally:
        writer.transport.abort()
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        answer.error = status.decode() + (await reader.read()).decode()[-300:]
        return
    done = False
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            answer.error = json.dumps(event["error"]) if "error" in event else answer.error
            for choice in event.get("choices", ()):
                answer.text += choice["text"]
                answer.times.append(time.perf_counter())
            if "usage" in event:
                answer.tokens = event["usage"]["completion_tokens"]
        done = done or line.startswith(b"data: [DONE]")
    if not done:
        answer.error = answer.error or "the stream ended early"


async def run_all(port: int, bodies: list[dict[str, Any]], streams: int) -> list[Answer]:
    """All bodies, so many at once."""
    gate = asyncio.Semaphore(streams)

    async def one(body: dict[str, Any]) -> Answer:
        async with gate:
            return await ask(port, body)

    return await asyncio.gather(*map(one, bodies))


def prompts() -> list[str]:
    from clover import assets

    found = json.loads(assets.HELD_OUT_PROMPTS.read_text())
    return found["prompts"] if isinstance(found, dict) else found


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of server and engine in turn, on the same requests."""
    import clover

    model, server, found = clover.load(), Server("--max-rows", "64"), {}
    texts = prompts()
    try:
        for streams in options.streams:
            count = streams * options.waves
            bodies = [
                {"prompt": texts[i % len(texts)], "max_tokens": 128, "temperature": 0, "ignore_eos": True}
                for i in range(count)
            ]
            requests = [
                model.request(body["prompt"], max_new_tokens=body["max_tokens"], ignore_eos=True)
                for body in bodies
            ]
            shares, rates = [], []
            for _ in range(options.rounds):
                started = time.perf_counter()
                tokens = sum(len(e.tokens) for e in model.engine.run(requests, max_rows=streams))
                own = tokens / (time.perf_counter() - started)
                started = time.perf_counter()
                answers = asyncio.run(run_all(server.port, bodies, streams))
                rate = sum(answer.tokens for answer in answers) / (time.perf_counter() - started)
                assert not any(answer.error for answer in answers), answers[0].error
                shares.append(rate / own)
                rates.append((rate, own))
            found[streams] = {"share": median(shares), "shares": shares, "rates": rates}
            print(f"{streams} streams: {median(shares):.3f} of the engine's own", rates, flush=True)
    finally:
        server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed"])
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps({"what": options.what, **globals()[options.what](options)}))


if __name__ == "__main__":
    main()
