"""The corpus of the embedded target: Python source that is on this machine, its licence known and permissive.

Files come from the standard library and from installed distributions. A file belongs to the held-out part when the
hash of its text says so, so the split is the same wherever the same file is found.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HELD_OUT_SHARE = 0.02
MAX_SOURCE_BYTES = 6_000_000
MIN_FILE_BYTES, MAX_FILE_BYTES = 512, 120_000

_PERMISSIVE = re.compile(
    r"\b(mit|bsd|apache|isc|psf|python software foundation|python-2\.0|0bsd|unlicense|hpnd)\b", re.I
)
_RESTRICTIVE = re.compile(r"\b(a?gpl|lgpl|mpl|mozilla|general public|cc-by-nc|proprietary|commercial)", re.I)
# Vendored code has licences of its own; tests and generated tables teach a small model little.
_SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages", "tests", "test", "testing", "idlelib", "lib2to3", "turtledemo"),
    *("_vendor", "vendor", "vendored", "extern", "_extern", "externals", "third_party"),
    *("__pycache__", "_generated", "_unicode_data"),
}


@dataclass(frozen=True)
class Source:
    """One place that code was taken from: a distribution (or the standard library), its version and its licence."""

    name: str
    version: str
    licence: str
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Document:
    """One source file."""

    source: str
    name: str
    text: str

    @property
    def digest(self) -> int:
        """The first 64 bits of the SHA-256 of the text."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big")

    @property
    def held_out(self) -> bool:
        """True for the hash-chosen share of files that no model of the recipe is trained on."""
        return self.digest % 10_000 < HELD_OUT_SHARE * 10_000


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed pseudo-random order, split by hash, with the places they came from."""

    train: list[Document]
    held_out: list[Document]
    sources: list[Source]


def licence_of(distribution: metadata.Distribution) -> str:
    """The licence a distribution declares (expression, classifiers, or a short licence field), "" when unknown."""
    about: Any = distribution.metadata
    classifiers = [
        c.rsplit("::", 1)[-1].strip() for c in about.get_all("Classifier") or [] if c.startswith("License")
    ]
    declared = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    return declared if len(declared) < 120 else ""


def is_permissive(licence: str) -> bool:
    """True when the licence is known to be permissive and names no copyleft or non-commercial one beside it."""
    return bool(_PERMISSIVE.search(licence)) and not _RESTRICTIVE.search(licence)


def read_corpus() -> Corpus:
    """Collect the corpus of this machine. Files that occur twice are taken once; no source gives more than 6 MB."""
    seen: set[int] = set()
    by_source: dict[Source, list[Document]] = {}
    for source, paths in _sources():
        documents = [d for path in paths if (d := _read(source.name, path)) is not None]
        by_source[source] = _first_bytes(sorted(documents, key=lambda d: d.digest), seen)
    documents = sorted((d for found in by_source.values() for d in found), key=lambda d: d.digest)
    counted = [
        Source(s.name, s.version, s.licence, len(found), sum(len(d.text) for d in found))
        for s, found in by_source.items()
        if found
    ]
    return Corpus(
        train=[d for d in documents if not d.held_out],
        held_out=[d for d in documents if d.held_out],
        sources=sorted(counted, key=lambda s: -s.bytes),
    )


def _sources() -> Iterator[tuple[Source, list[Path]]]:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    version = sysconfig.get_python_version()
    own = [
        p
        for p in sorted(stdlib.rglob("*.py"))
        if not {"site-packages", "dist-packages"}.intersection(p.parts)
    ]
    yield Source("python standard library", version, "PSF-2.0"), own
    distributions = {d.metadata["Name"].lower(): d for d in metadata.distributions() if d.metadata["Name"]}
    for name, distribution in sorted(distributions.items()):
        licence = licence_of(distribution)
        if is_permissive(licence) and name != "clover-decoding":
            files = [Path(str(f.locate())) for f in distribution.files or [] if f.suffix == ".py"]
            yield Source(name, distribution.version, licence), files


def _read(source: str, path: Path) -> Document | None:
    packages = "site-packages"
    inside = path.parts[path.parts.index(packages) + 1 :] if packages in path.parts else path.parts[-4:]
    if _SKIPPED_FOLDERS.intersection(inside[:-1]) or path.name.startswith("test_"):
        return None
    try:
        if not MIN_FILE_BYTES <= path.stat().st_size <= MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return Document(source, "/".join(inside), text) if _reads_like_code(text) else None


def _reads_like_code(text: str) -> bool:
    lines = text.splitlines()
    printable = sum(c.isascii() for c in text) / len(text)
    return printable > 0.99 and len(text) / max(len(lines), 1) < 60 and max(map(len, lines)) < 400


def _first_bytes(documents: Iterable[Document], seen: set[int]) -> list[Document]:
    kept: list[Document] = []
    total = 0
    for document in documents:
        if total + len(document.text) > MAX_SOURCE_BYTES:
            break
        if document.digest not in seen:
            seen.add(document.digest)
            kept.append(document)
            total += len(document.text)
    return kept


def prompts_from(documents: Iterable[Document], count: int) -> list[str]:
    """Openings of real code, one per document, each ending inside the body of a function.

    Documents of as many different sources as possible are used first, so that one large package does not dominate.
    """
    by_source: dict[str, list[str]] = defaultdict(list)
    for document in documents:
        found = _opening(document.text)
        if found:
            by_source[document.source].append(found)
    rounds = max(map(len, by_source.values()), default=0)
    ordered = [texts[i] for i in range(rounds) for texts in by_source.values() if i < len(texts)]
    return ordered[:count]


def _opening(text: str, before: int = 6, inside: int = 4) -> str | None:
    """The lines around the first `def` whose body goes on after `inside` lines of plain code.

    No line break at the end: alone it is a token of its own, which in the corpus stands before the end of a file.
    """
    rows = text.splitlines()
    for start, row in enumerate(rows):
        body = rows[start + 1 : start + 1 + inside]
        if start >= before and re.match(r" *(async )?def \w+\(.*:$", row) and _is_plain_code(row, body):
            return "\n".join([*rows[start - before : start + 1], *body])
    return None


def _is_plain_code(definition: str, body: list[str]) -> bool:
    margin = len(definition) - len(definition.lstrip()) + 4
    indented = all(line.startswith(" " * margin) for line in body)
    return (
        len(body) > 0
        and indented
        and not any(mark in line for line in body for mark in ("'''", '"""', "return"))
    )
