"""Limits on the work that the engine runs at once."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EngineLimits:
    """The sizes of prompt chunks and of new caches.

    Args:
        prefill_chunk: the most prompt tokens per sequence in one chunk.
        chunk_tokens: the most tokens of one chunk over all sequences. More tokens use memory and give no speed.
        chunk_mask: the most entries of a chunk's attention mask, so that it stays at a few MiB for long contexts.
        least_chunk: tokens per sequence that a chunk always has, whatever the two limits above.
        padding: the most padding tokens that one chunk accepts to save a forward. None accepts as many as run in
            about the time of reading the weights: 64 on a CPU, 256 elsewhere.
        new_tokens: new tokens per sequence for which caches have room at first. Few texts reach their full length.
    """

    prefill_chunk: int = 512
    chunk_tokens: int = 2048
    chunk_mask: int = 2**22
    least_chunk: int = 16
    padding: int | None = None
    new_tokens: int = 256

    def chunk(self, sequences: int, length: int) -> int:
        """Return the most tokens per sequence of one chunk: fewer for many sequences and after a long text."""
        masked = self.chunk_mask // (sequences * (length + self.prefill_chunk))
        most = min(masked, self.chunk_tokens // sequences)
        return min(self.prefill_chunk, max(most, self.least_chunk))

    def padding_on(self, device: torch.device) -> int:
        """Return `padding`, or its default on a device."""
        return (64 if device.type == "cpu" else 256) if self.padding is None else self.padding
