"""An OpenAI-compatible HTTP server on the engine (docs/serving.md). `run.serve` starts it."""

LEAST_LOGPROB = -9999.0  # what clients get in the place of -inf and NaN, which JSON does not have
