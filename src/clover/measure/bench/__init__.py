"""`clover bench`: what speculative decoding gains on this machine, beside plain decoding and transformers' own ways."""
