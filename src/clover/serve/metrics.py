"""The metrics of GET /metrics, for Prometheus. After the prefix, their names are vLLM's if vLLM has them."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from clover.engine import StepEvent

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ACCEPTED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)


class ServerMetrics:
    """The metrics of one server, in their own registry. The engine's thread calls `record`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.prompt = self._of(Counter, "prompt_tokens", "Prompt tokens of requests that were not refused.")
        self._tokens = self._of(Counter, "generation_tokens", "New tokens.")
        self._first = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first tokens.", _SECONDS
        )
        self._between = self._histogram("inter_token_latency_seconds", "Between steps of one text.", _SECONDS)
        self._accepted = self._histogram(
            "accepted_tokens_per_step", "Accepted draft tokens; τ is 1 + sum / count.", _ACCEPTED
        )
        self._tau = self._of(
            Gauge, "mean_acceptance_length", "τ: new tokens per text and step, since the start."
        )
        self._finished = Counter(
            "clover_request_success",
            "Texts that ended, by reason.",
            ["finished_reason"],
            registry=self._registry,
        )
        self.refused = self._of(Counter, "requests_refused", "Requests refused because too many wait.")
        self.failed = self._of(Counter, "requests_failed", "Texts that ended because a decoding step failed.")
        self._running = self._of(Gauge, "num_requests_running", "Texts that are being decoded.")
        self._waiting = self._of(
            Gauge, "num_requests_waiting", "Texts that wait for a place, or for their prompt."
        )
        self._steps = self._emitted = 0
        self._tau.set_function(lambda: self._emitted / self._steps if self._steps else 0.0)

    def _of(self, kind: type, name: str, documentation: str):
        return kind(f"clover_{name}", documentation, registry=self._registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"clover_{name}", documentation, buckets=buckets, registry=self._registry)

    def watch(self, held: Callable[[], int], running: Callable[[], int]) -> None:
        """Set the functions that count the texts that run or wait (`held`) and those that run."""
        self._running.set_function(running)
        self._waiting.set_function(lambda: max(held() - running(), 0))

    def record(self, event: StepEvent, seconds: float, first: bool, speculates: bool) -> None:
        """Add a step of one text; `seconds` have passed since its last step, or since the request's arrival."""
        count = len(event.tokens)
        self._tokens.inc(count)
        if speculates:
            self._steps += 1
            self._emitted += count
            self._accepted.observe(count - 1)
        (self._first if first else self._between).observe(seconds)
        if event.generation is not None:
            self._finished.labels(event.generation.finish_reason).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
