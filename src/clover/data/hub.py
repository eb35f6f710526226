"""Read records of parquet files and of data sets on the Hugging Face Hub, by `datasets` (extra `train`).

`datasets` copies what it reads into its cache (`HF_HOME`), and maps the copy into memory. No code of a data set runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clover.data.formats import is_read
from clover.errors import UserError, one_line

if TYPE_CHECKING:
    from datasets import Dataset

_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_PROBES = 64  # records whose hash identifies a data set


def is_hub_name(name: str) -> bool:
    """Return True for OWNER/NAME and OWNER/NAME:SPLIT.

    >>> is_hub_name("openai/gsm8k"), is_hub_name("openai/gsm8k:test"), is_hub_name("texts.jsonl")
    (True, True, False)
    """
    return _NAME.fullmatch(name) is not None


def open_hub(name: str) -> Dataset:
    """Return a data set of the Hub: OWNER/NAME:SPLIT, or the split "train" of OWNER/NAME.

    UserError if it cannot be found or read.
    """
    place, _, split = name.partition(":")
    return _load(f"{name} is not a file; as a data set of the Hub it", path=place, split=split or "train")


def open_parquet(path: str) -> Dataset:
    """Return the rows of a parquet file, with the columns that are read, or all columns if none is."""
    return _load(path, path="parquet", data_files=path, split="train")


def read_record(dataset: Dataset, index: int, where: str) -> dict[str, Any]:
    """Return one record; UserError, which names `where`, if Python cannot represent a value."""
    try:
        return dataset[index]
    except (ValueError, OverflowError) as error:  # for example, a date after the year 9999
        raise UserError(f"{where} cannot be read: {one_line(error)}") from error


def probe_records(dataset: Dataset, name: str) -> bytes:
    """Return a hash of the name, the size, and evenly spaced records of the data set."""
    size = len(dataset)
    rows = [dataset[part * size // _PROBES] for part in range(_PROBES)]
    return hashlib.blake2b(json.dumps([name, size, rows], default=str).encode(), digest_size=16).digest()


def _load(what: str, **options: Any) -> Dataset:
    """Load a data set by `datasets`; `what` is the subject of a UserError's sentence."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise UserError(f"{what} is read by datasets: pip install datasets") from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        loaded: Any = datasets.load_dataset(**options)
    except (DatasetsError, OSError, ValueError) as error:
        raise UserError(f"{what} cannot be read: {one_line(error)}") from error
    known = [column for column in loaded.column_names if is_read(column)]
    loaded = loaded.select_columns(known) if known else loaded
    _leave_encoded(loaded.info.features)  # `loaded.features` is a copy
    return loaded


def _leave_encoded(feature: Any) -> None:
    """Keep pictures, sounds and films as bytes and paths, at any depth of a feature, because nothing uses them."""
    if type(feature).__name__ != "Json" and hasattr(feature, "decode"):
        feature.decode = False
    inner: Any = getattr(feature, "feature", feature)
    if inner is not feature:
        inner = [inner]
    elif isinstance(feature, dict):
        inner = feature.values()
    for one in inner if isinstance(inner, Iterable) else ():
        _leave_encoded(one)
