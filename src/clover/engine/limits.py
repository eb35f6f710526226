"""How much the engine runs at once."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EngineLimits:
    """How many tokens one chunk of prompts has, and how large caches are made.

    Args:
        prefill_chunk: prompt tokens that are run at once per sequence, at most.
        chunk_tokens: tokens of one chunk, all sequences together: more give no speed and use memory.
        chunk_mask: entries of the attention mask of one chunk: a few MiB, however long the context is.
        least_chunk: tokens of a chunk per sequence that the two limits before leave in any case.
        padding: padding tokens of one chunk that are worth a forward less; None for as many as run in about the time
            that reading the weights takes: 64 on a CPU, 256 elsewhere.
        new_tokens: new tokens per sequence that caches have room for at first: few texts become as long as they may.
    """

    prefill_chunk: int = 512
    chunk_tokens: int = 2048
    chunk_mask: int = 2**22
    least_chunk: int = 16
    padding: int | None = None
    new_tokens: int = 256

    def chunk(self, sequences: int, length: int) -> int:
        """Return the tokens per sequence of one chunk, at most: fewer of many sequences and after a long text."""
        masked = self.chunk_mask // (sequences * (length + self.prefill_chunk))
        most = min(masked, self.chunk_tokens // sequences)
        return min(self.prefill_chunk, max(most, self.least_chunk))

    def padding_on(self, device: torch.device) -> int:
        """Return `padding`, or its default on a device."""
        return (64 if device.type == "cpu" else 256) if self.padding is None else self.padding
