"""A server that answers with what a test has written down, so that a page can be shown any answer, and any failure."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import clover
from clover.serve.guard import POLICY

PAGE = Path(clover.__file__).parent / "serve" / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Step:
    """One decoding step: the token tree, the nodes on the accepted path, and the model's own token after them."""

    nodes: tuple[str, ...] = ()
    parents: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    own: str = ""
    source: str = "draft"
    seconds: float = 0.01

    def tokens(self) -> list[dict[str, Any]]:
        taken = [
            {"text": self.nodes[node], "source": self.source, "depth": depth}
            for depth, node in enumerate(self.accepted, start=1)
        ]
        own = {"text": self.own, "source": "target", "depth": 0}
        return [*taken, own] if self.own else taken

    @property
    def deepest(self) -> int:
        """Depth of the tree."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths, default=0)


def chain(*tokens: str, accepted: int, own: str, source: str = "draft") -> Step:
    """A step whose draft proposes one path."""
    return Step(tokens, tuple(range(-1, len(tokens) - 1)), tuple(range(accepted)), own, source)


@dataclass
class Script:
    """What the server says next, and what it was asked.

    Attributes:
        deltas: of a chat's answer, which come before its steps: reasoning, and calls of tools.
        steps: of an answer with speculation; without it the same tokens come one by one.
        break_after: steps after which the connection breaks, in the next answer only.
        refuse: status and message with which the next request is refused.
        hold: where there is one, an answer waits for it before its last step, or before it breaks.
    """

    steps: tuple[Step, ...] = ()
    deltas: tuple[dict[str, Any], ...] = ()
    break_after: int | None = None
    refuse: tuple[int, str] | None = None
    hold: threading.Event | None = None
    key: str | None = None
    model: dict[str, Any] = field(
        default_factory=lambda: {"id": "tiny", "draft": "recall", "max_model_len": 1024}
    )
    plain_text: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def chunks(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        steps = self.steps if body.get("speculation", True) else self._plain()
        for delta in self.deltas:
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for number, step in enumerate(steps, start=1):
            tokens = step.tokens()
            text = "".join(token["text"] for token in tokens)
            choice = {"delta": {"content": text}} if "chat" in path else {"text": text}
            tree = {"parents": step.parents, "tokens": step.nodes}
            speculation = {"step": number, "seconds": step.seconds, "drafted": len(step.nodes), "tree": tree}
            speculation |= {"accepted": step.accepted, "tokens": tokens}
            yield {"choices": [{"index": 0, **choice, "finish_reason": None}], "speculation": speculation}
        reason = {"delta": {}} if "chat" in path else {"text": ""}
        yield {"choices": [{"index": 0, **reason, "finish_reason": "stop"}]} | _acceptance(steps)
        usage = {"completion_tokens": sum(len(step.tokens()) for step in steps)}
        yield {"choices": [], "usage": usage} | _acceptance(steps)

    def _plain(self) -> list[Step]:
        whole = self.plain_text
        texts = (
            [token["text"] for step in self.steps for token in step.tokens()] if whole is None else [whole]
        )
        return [Step(own=text) for text in texts]


def _acceptance(steps: Sequence[Step]) -> dict[str, Any]:
    """As the server tells it at the end of an answer."""
    counts, depths = [len(step.accepted) for step in steps], sum(step.deepest for step in steps)
    told = {
        "mean_acceptance_length": 1 + sum(counts) / len(counts),
        "draft_acceptance_rate": sum(counts) / depths if depths else None,
        "acceptance_histogram": [counts.count(n) for n in range(max(counts) + 1)],
    }
    return {"speculative_decoding": told}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._refused() or self._json(200, {"data": [self.script.model]})
        else:
            self._file(PAGE / (self.path.lstrip("/") or "index.html"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        self.script.asked.append(body)
        self._begin(200, "text/event-stream", {"Transfer-Encoding": "chunked"})
        until, self.script.break_after = self.script.break_after, None
        chunks = list(self.script.chunks(self.path, body))
        for count, chunk in enumerate(chunks):
            if count == until:
                self._hold()  # a browser drops what it has not read yet when the connection breaks
                self.close_connection = True  # in the middle of a chunked body
                return
            if count == len(chunks) - 3:
                self._hold()
            self._send(f"data: {json.dumps(chunk)}\n\n")
        self._send("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _hold(self) -> None:
        if self.script.hold:
            self.script.hold.wait(20)

    def _refused(self) -> bool:
        key, refuse = self.script.key, self.script.refuse
        expected = f"Bearer {key}".encode().decode("latin-1")
        if key is not None and self.headers.get("Authorization") != expected:
            refuse = (401, "the API key is missing or wrong")
        elif refuse is not None:
            self.script.refuse = None
        if refuse is not None:
            self._json(refuse[0], {"error": {"message": refuse[1]}})
        return refuse is not None

    def _file(self, path: Path) -> None:
        if path.parent == PAGE and path.suffix in TYPES and path.is_file():
            self._whole(200, TYPES[path.suffix], path.read_bytes())
        else:
            self._json(404, {"error": {"message": "not found"}})

    def _json(self, status: int, content: object) -> bool:
        self._whole(status, "application/json", json.dumps(content).encode())
        return True

    def _whole(self, status: int, kind: str, content: bytes) -> None:
        self._begin(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _begin(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Security-Policy": POLICY, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class FakeServer:
    """Serves the page and `script` on a free port until it is closed."""

    def __init__(self) -> None:
        self.script = Script()
        handler = type("Handler", (_Handler,), {"script": property(lambda _: self.script)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
