"""The line of metrics that follows a text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clover.engine import Generation


def describe(generation: "Generation") -> str:
    """Say how much was written, how fast, and how many tokens a decoding step gave (τ, with a draft)."""
    count = len(generation.tokens)
    parts = [f"{count} tokens", f"{count / max(generation.seconds, 1e-9):.1f} tokens/s"]
    if generation.acceptance.drafted:
        parts.append(f"τ {generation.acceptance.tau:.2f}")
    reasons = {"length": "stopped at --max-new-tokens", "context": "stopped at the end of the context"}
    return " · ".join([*parts, *filter(None, [reasons.get(generation.finish_reason)])])
