"""Training data: records from files, tokens with a loss mask, deterministic batches."""

from clover.data.batching import Batch, Batches, Position, held_out
from clover.data.chat import Sample, encode_records
from clover.data.formats import Record
from clover.data.texts import FileTexts, Texts, fingerprint, token_counts

__all__ = [
    "Batch",
    "Batches",
    "FileTexts",
    "Position",
    "Record",
    "Sample",
    "Texts",
    "encode_records",
    "fingerprint",
    "held_out",
    "token_counts",
]
