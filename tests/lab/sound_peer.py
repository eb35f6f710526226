"""The worker of `fake_peer` without its faults."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers.peer import serve
from tests.lab.fake_peer import Counting

if __name__ == "__main__":
    serve(lambda settings: Counting(replace(settings, assistant="")))
