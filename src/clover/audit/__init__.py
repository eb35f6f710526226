"""Proof, on the user's own model and machine, that speculative decoding leaves the output unchanged."""
