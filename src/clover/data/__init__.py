"""Training data: records from files, tokens with a loss mask, deterministic batches."""

from clover.data.batching import Batch, Batches, fingerprint, split_samples
from clover.data.chat import (
    PLAIN_TEMPLATE,
    Sample,
    TemplateRefused,
    TrainingData,
    encode_prompt,
    encode_record,
    read_samples,
)
from clover.data.counts import token_counts
from clover.data.formats import Message, Record, parse_record, read_records

__all__ = [
    "PLAIN_TEMPLATE",
    "Batch",
    "Batches",
    "Message",
    "Record",
    "Sample",
    "TemplateRefused",
    "TrainingData",
    "encode_prompt",
    "encode_record",
    "fingerprint",
    "parse_record",
    "read_records",
    "read_samples",
    "split_samples",
    "token_counts",
]
