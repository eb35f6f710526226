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
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import cycle
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

    @property
    def cpu_seconds(self) -> float:
        """Of all its threads so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@dataclass
class Answer:
    """One streamed answer: its text, when its pieces came, and what the server said of it at the end."""

    started: float = field(default_factory=time.perf_counter)
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
    """Tokens per second of server and engine in turn, on the same requests.

    The engine decodes them batch by batch, as `clover bench` does, and once more with all of them in its queue from
    the start; a server's next request comes only after the answer before it. CPU time leaves out what other work
    takes of a busy core.
    """
    import clover

    model, server, found = clover.load(), Server("--max-sequences", "64"), {}
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
            shares, of_queue, of_cpu = [], [], []
            for _ in range(options.rounds):
                started, cpu = time.perf_counter(), time.process_time()
                batches = [requests[at : at + streams] for at in range(0, count, streams)]
                own = tokens = sum(
                    len(e.tokens) for batch in batches for e in model.engine.run(batch, max_sequences=streams)
                )
                own /= time.perf_counter() - started
                own_cpu = (time.process_time() - cpu) / tokens
                started = time.perf_counter()
                queue = sum(len(e.tokens) for e in model.engine.run(requests, max_sequences=streams))
                queue /= time.perf_counter() - started
                started, cpu = time.perf_counter(), server.cpu_seconds
                answers = asyncio.run(run_all(server.port, bodies, streams))
                tokens = sum(answer.tokens for answer in answers)
                rate = tokens / (time.perf_counter() - started)
                assert not any(answer.error for answer in answers), answers[0].error
                shares.append(rate / own)
                of_queue.append(rate / queue)
                of_cpu.append(own_cpu * tokens / (server.cpu_seconds - cpu))
            found[streams] = {"shares": shares, "shares_of_queue": of_queue, "shares_by_cpu_time": of_cpu}
            print(
                f"{streams} streams: {median(shares):.3f} of the engine in batches, {median(of_queue):.3f} with all in "
                f"its queue; by CPU time {median(of_cpu):.3f} of the engine in batches",
                flush=True,
            )
    finally:
        server.stop()
    return found


def mixed(options: argparse.Namespace) -> dict[str, Any]:
    """64 streams of mixed length for some minutes; every text is compared with that of the request alone."""
    server, rng, texts = Server("--max-sequences", str(options.rows)), random.Random(0), prompts()
    lengths, sizes = (20, 100, 400, None), (4, 16, 64, 200)
    kinds = [
        {"prompt": text[: rng.choice(lengths)], "max_tokens": rng.choice(sizes), "temperature": 0}
        for text, _ in zip(cycle(texts), range(options.kinds), strict=False)
    ]
    try:
        alone = [asyncio.run(ask(server.port, kind)).text for kind in kinds]
        before, found = server.memory, list[tuple[int, Answer]]()
        asyncio.run(_streams(server.port, kinds, options, found))
        idle, after = server.metrics(), server.memory
    finally:
        code = server.stop()
    gaps = sorted(b - a for _, answer in found for a, b in zip(answer.times, answer.times[1:], strict=False))
    wrong = [number for number, answer in found if answer.text != alone[number]]
    return {
        "requests": len(found),
        "tokens": sum(answer.tokens for _, answer in found),
        "errors": [answer.error for _, answer in found if answer.error][:5],
        "texts_that_differ": len(wrong),
        "first_token_seconds": _quantiles(sorted(a.times[0] - a.started for _, a in found if a.times)),
        "between_chunks_seconds": _quantiles(gaps),
        "left": {name: idle[name] for name in ("clover_num_requests_running", "clover_num_requests_waiting")},
        "memory_mib": [before, after],
        "exit_code": code,
    }


async def _streams(
    port: int, kinds: list[dict[str, Any]], options: argparse.Namespace, found: list[Any]
) -> None:
    end = time.perf_counter() + 60 * options.minutes

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.perf_counter() < end:
            kind = rng.randrange(len(kinds))
            found.append((kind, await ask(port, kinds[kind])))

    await asyncio.gather(*map(client, range(64)))


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        name: values[int(share * (len(values) - 1))]
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }


def vanish(options: argparse.Namespace) -> dict[str, Any]:
    """Clients that disconnect at random; nothing may be left, and memory may not grow from round to round."""
    server, rng, texts = Server("--max-waiting", "2000"), random.Random(1), prompts()
    memory, errors = [], 0

    async def some(count: int) -> None:
        nonlocal errors
        gate = asyncio.Semaphore(100)

        async def one() -> None:
            nonlocal errors
            async with gate:
                body = {"prompt": rng.choice(texts), "max_tokens": 500, "ignore_eos": True}
                errors += (
                    await ask(server.port, body, vanish=rng.random() * options.patience)
                ).error is not None

        await asyncio.gather(*(one() for _ in range(count)))

    try:
        for _ in range(4):
            asyncio.run(some(options.clients // 4))
            memory.append(server.memory)
        end = time.monotonic() + 60
        while any((left := _left(server)).values()) and time.monotonic() < end:
            time.sleep(0.1)
        answer = asyncio.run(ask(server.port, {"prompt": texts[0], "max_tokens": 8, "temperature": 0}))
        memory.append(server.memory)
    finally:
        code = server.stop()
    threads = {"errors": errors, "works_after": answer.error is None and answer.tokens == 8}
    return {"clients": options.clients, "left": left, "memory_mib": memory, "exit_code": code} | threads


def _left(server: Server) -> dict[str, float]:
    metrics = server.metrics()
    return {name: metrics[f"clover_num_requests_{name}"] for name in ("running", "waiting")}


def kill(options: argparse.Namespace) -> dict[str, Any]:
    """Kill -9 in the middle of work; the files of the models are as before, and a new server says the same."""
    from clover import assets

    def digest() -> str:
        whole = hashlib.sha256()
        for file in sorted(assets.TARGET.parent.rglob("*")):
            whole.update(file.read_bytes() if file.is_file() else str(file).encode())
        return whole.hexdigest()

    body = {"prompt": prompts()[0], "max_tokens": 100, "temperature": 0}
    before, server = digest(), Server()
    first = asyncio.run(ask(server.port, body))

    async def work() -> list[Answer]:
        clients = [asyncio.create_task(ask(server.port, body)) for _ in range(16)]
        await asyncio.sleep(1.0)
        server.process.kill()
        return await asyncio.gather(*clients)

    cut = asyncio.run(work())
    server.process.wait()
    again = Server()
    second = asyncio.run(ask(again.port, body))
    code = again.stop()
    return {
        "cut_off": sum(answer.error is not None for answer in cut),
        "files_unchanged": digest() == before,
        "same_text": first.text == second.text != "",
        "exit_code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["speed", "mixed", "vanish", "kill"])
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32], help="speed: number of streams")
    parser.add_argument("--waves", type=int, default=3, help="speed: requests per stream")
    parser.add_argument("--rounds", type=int, default=3, help="speed: number of rounds")
    parser.add_argument("--minutes", type=float, default=10.0, help="mixed: duration")
    parser.add_argument("--kinds", type=int, default=36, help="mixed: number of different requests")
    parser.add_argument("--rows", type=int, default=64, help="mixed: --max-sequences of the server")
    parser.add_argument("--clients", type=int, default=1000, help="vanish: number of clients")
    parser.add_argument("--patience", type=float, default=3.0, help="vanish: maximum seconds")
    options = parser.parse_args()
    print(json.dumps({"what": options.what, "cores": os.cpu_count(), **globals()[options.what](options)}))


if __name__ == "__main__":
    main()
