"""Training data: records from files, tokens with a loss mask, deterministic batches."""

from clover.data.batching import Batch, Batches, Position, held_out
from clover.data.chat import PLAIN_TEMPLATE, Sample, TemplateRefused, encode_prompt, encode_records
from clover.data.formats import Message, Record, parse_record
from clover.data.texts import FileTexts, Texts, TrainingData, fingerprint, read_samples, token_counts

__all__ = [
    "PLAIN_TEMPLATE",
    "Batch",
    "Batches",
    "FileTexts",
    "Message",
    "Position",
    "Record",
    "Sample",
    "TemplateRefused",
    "Texts",
    "TrainingData",
    "encode_prompt",
    "encode_records",
    "fingerprint",
    "held_out",
    "parse_record",
    "read_samples",
    "token_counts",
]
