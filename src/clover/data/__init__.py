"""Training data: records from files, tokens with a loss mask, deterministic batches."""

from clover.data.batching import Batches as Batches
from clover.data.batching import Position as Position
from clover.data.batching import TextBatch as TextBatch
from clover.data.chat import Sample as Sample
from clover.data.chat import encode_records as encode_records
from clover.data.formats import Record as Record
from clover.data.held_out import HeldOut as HeldOut
from clover.data.held_out import choose_held_out as choose_held_out
from clover.data.texts import FileTexts as FileTexts
from clover.data.texts import SampleTexts as SampleTexts
from clover.data.texts import Texts as Texts
from clover.data.texts import fingerprint as fingerprint
from clover.data.texts import token_counts as token_counts
