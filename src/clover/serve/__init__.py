"""An OpenAI-compatible HTTP server on the engine (docs/serving.md). `run.serve` starts it."""

LEAST_LOGPROB = -9999.0  # replaces -inf and NaN, which JSON does not have
