"""Prompts whose licence lets what is learnt from them be given to anyone: rows of a file, each with a `licence`."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clover.data.formats import Record, message_text, parse_record
from clover.data.rows import open_rows
from clover.errors import UserError
from clover.files import write_text

# Permissive for text as well as for code; none asks that what is made of it has the same licence.
ACCEPTED = {
    *("mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "0bsd", "isc", "psf-2.0", "unlicense", "zlib"),
    *("cc0-1.0", "cc-by-3.0", "cc-by-4.0", "odc-by", "odc-by-1.0", "pddl-1.0"),
    *("cdla-permissive-1.0", "cdla-permissive-2.0", "public domain"),
}
_UNKNOWN = "unknown"
_SHARED = 8  # words in a row, by which two prompts are too much alike


@dataclass(frozen=True)
class PromptSource:
    """Rows of a file with one source and one licence, "unknown" where a row names none.

    Args:
        rows: different ones.
        skipped: rows beside these in which nobody asks anything, or that resemble prompts of an evaluation.
        used: whether the licence is accepted.
    """

    name: str
    licence: str
    rows: int
    skipped: int
    used: bool


def is_accepted(licence: str) -> bool:
    """Return whether all licences that are named are in ACCEPTED; words such as "repo" after a name are passed over.

    >>> [is_accepted(name) for name in ("MIT", "Apache-2.0 repo", "CC-BY-4.0 and MIT", "CC-BY-SA-4.0", "MIT; ShareGPT")]
    [True, True, True, False, False]
    """
    names = re.split(r"\s+and\s+|[,;+&/]", licence.lower())
    found = [re.sub(r"\s+(licen[cs]e|repo|repository)$", "", name.strip()) for name in names]
    return all(name in ACCEPTED for name in found)


def accept_prompts(file: Path, output: Path, apart: Sequence[Path] = ()) -> list[PromptSource]:
    """Write the rows that may be used into `output`, in an order that depends on their texts alone.

    A row has what `clover.data.formats` reads, and `licence` (or `license`) and `source`. Equal rows count
    once. Conversations in which nobody asks anything are skipped; so are rows that share eight words in a row with a
    prompt of the files `apart`, on which drafts are evaluated.

    Returns:
        what the file holds, the largest part first.

    Raises:
        UserError: a file cannot be read, or no row may be used.
    """
    evaluated = {run for one in apart for row in open_rows(one) for run in _runs_of_words(parse_record(*row))}
    counts, skipped = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    kept: dict[bytes, str] = {}
    seen: set[bytes] = set()
    for fields, where in open_rows(file):
        licence = _word(fields, "licence") or _word(fields, "license") or _UNKNOWN
        origin = _word(fields, "source") or file.name, licence
        try:
            record = parse_record(fields, where)
        except UserError:  # there is nothing to answer
            skipped[origin] += 1
            continue
        if (digest := record.digest()) in seen:
            continue
        seen.add(digest)
        if not evaluated.isdisjoint(_runs_of_words(record)):
            skipped[origin] += 1
            continue
        counts[origin] += 1
        if is_accepted(licence):
            kept[hashlib.blake2b(digest).digest()] = json.dumps(fields, ensure_ascii=False, default=str)
    if not kept:
        raise UserError(
            f"{file} holds no row that may be used: each needs a field licence that names one of "
            f"{', '.join(sorted(ACCEPTED))}; {skipped.total():,} rows ask nothing, or resemble prompts of an evaluation"
        )
    write_text(output, "".join(kept[digest] + "\n" for digest in sorted(kept)))
    return [
        PromptSource(*origin, counts[origin], skipped[origin], is_accepted(origin[1]))
        for origin in sorted(counts | skipped, key=lambda one: counts[one], reverse=True)
    ]


def _runs_of_words(record: Record) -> Iterator[tuple[str, ...]]:
    """Yield each run of words of what is asked, without signs and in small letters."""
    asked = [record.prompt, *(message_text(one) for one in record.messages if one["role"] == "user")]
    words = re.findall(r"\w+", " ".join(asked).lower())
    return (tuple(words[at : at + _SHARED]) for at in range(len(words) - _SHARED + 1))


def _word(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value.strip() if isinstance(value, str) and value.isprintable() and len(value) < 200 else ""
