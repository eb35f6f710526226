"""An engine that needs no model, run as a worker: it counts on from the last token of a prompt.

The assistant is what goes wrong: "load", "text", "end", "hang", "noise" or nothing; "memory" takes much of it.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks.peers.peer import Peer, Settings, serve


class Counting(Peer):
    """Sleeps a little per token, twice as long as "plain" unless its method is another; eos ends its texts."""

    batches = True
    packages = ("pytest",)

    def __init__(self, settings: Settings) -> None:
        self._fault, self._plain = settings.assistant, settings.method == "plain"
        self.batches = settings.weights != "single"
        if self._fault == "load":
            raise RuntimeError("no\nsuch model")

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        if self._fault == "noise":
            print("a library prints", flush=True)
            os.write(1, b"and so does one in C\n")
        if self._fault == "end" and max_new_tokens > 1:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        if self._fault == "text":
            return [[] for _ in prompts]
        if self._fault == "memory":
            bytearray(b"x") * (len(prompts) << 25)
        time.sleep(0.002 if self._plain else 0.001)
        return [list(range(prompt[-1] + 1, prompt[-1] + 1 + max_new_tokens)) for prompt in prompts]

    def perplexity(self, tokens: list[int]) -> float:
        if self._fault == "memory":
            bytearray(b"x") * (1 << 29)
        return float(len(tokens))


def prepare(settings: Settings) -> None:
    with open(f"{settings.made}/{settings.weights}-{settings.method}", "w") as file:
        file.write("made")


if __name__ == "__main__":
    serve(Counting, prepare)
