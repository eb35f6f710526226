"""An OpenAI-compatible HTTP server on the engine (docs/serving.md). `run.run` starts it."""
