"""The corpus of the embedded target: Python source that is on this machine, its licence known and permissive.

Files come from the standard library and from installed distributions. A file belongs to the held-out part when the
hash of its text says so, so the split is the same wherever the same file is found.
"""

import hashlib
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

_HELD_OUT_SHARE = 0.02
_MAX_SOURCE_BYTES = 6_000_000
_MIN_FILE_BYTES, _MAX_FILE_BYTES = 512, 120_000

_PERMISSIVE = re.compile(
    r"\b(mit|bsd|apache|isc|psf|python software foundation|python-2\.0|0bsd|unlicense|hpnd)\b", re.I
)
_RESTRICTIVE = re.compile(
    r"\b(a?gpl|lgpl|mpl|mozilla|general public|epl|eclipse|cddl|eupl|european union|sspl|server side public|osl|"
    r"cc[- ]by[- ](nc|nd|sa)|share ?-?alike|busl|business source|elastic|proprietary|commercial|commons clause)",
    re.I,
)
_INSTALLED = {"site-packages", "dist-packages"}
# Vendored code has licences of its own; tests and generated tables teach a small model little.
_SKIPPED_FOLDERS = _INSTALLED | {
    *(
        "tests",
        "test",
        "testing",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "__pycache__",
        "_generated",
        "_unicode_data",
    ),
    *("_vendor", "vendor", "vendored", "extern", "_extern", "externals", "third_party"),
}
# Six lines, the line of a `def`, and four lines of plain code in its body.
_OPENING = re.compile(
    r"""^(?:.*\n){6}( *)(?:async )?def \w+\(.*:(?:\n\1    (?!.*(?:return|'{3}|"{3})).*){4}""", re.MULTILINE
)


@dataclass(frozen=True)
class Source:
    """One place that code was taken from: a distribution (or the standard library), its version and its licence.

    `bytes` are characters, which are mostly bytes of code.
    """

    name: str
    version: str
    licence: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Document:
    """One source file."""

    source: str
    name: str
    text: str

    @property
    def digest(self) -> int:
        """Return the first 64 bits of the SHA-256 of the text."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big")

    @property
    def held_out(self) -> bool:
        """True for the hash-chosen share of files that no model of the recipe is trained on."""
        return self.digest % 10_000 < _HELD_OUT_SHARE * 10_000


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed pseudo-random order, split by hash, with the places they came from."""

    train: list[Document]
    held_out: list[Document]
    sources: list[Source]


def read_corpus() -> Corpus:
    """Collect the corpus of this machine. Files that occur twice are taken once; no source gives more than 6 MB."""
    seen: set[int] = set()
    sources: list[Source] = []
    documents: list[Document] = []
    for name, version, licence, paths in _places():
        read = [document for path in paths if (document := _read(name, path)) is not None]
        found = _first_bytes(sorted(read, key=lambda d: d.digest), seen)
        if found:
            sources.append(Source(name, version, licence, len(found), sum(len(d.text) for d in found)))
            documents += found
    documents.sort(key=lambda d: d.digest)
    return Corpus(
        train=[d for d in documents if not d.held_out],
        held_out=[d for d in documents if d.held_out],
        sources=sorted(sources, key=lambda s: -s.bytes),
    )


def is_permissive(licence: str) -> bool:
    """Return True if the licence is known to be permissive and names no copyleft or non-commercial one beside it."""
    return bool(_PERMISSIVE.search(licence)) and not _RESTRICTIVE.search(licence)


def _places() -> Iterator[tuple[str, str, str, list[Path]]]:
    """Name, version, licence and files of the standard library and of each distribution that may be used."""
    stdlib = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    own = [path for path in stdlib if not _INSTALLED.intersection(path.parts)]
    yield "python standard library", sysconfig.get_python_version(), "PSF-2.0", own
    distributions = {d.metadata["Name"].lower(): d for d in metadata.distributions() if d.metadata["Name"]}
    for name, distribution in sorted(distributions.items()):
        licence = _licence(distribution)
        if is_permissive(licence) and name != "clover-decoding":
            files = [Path(str(f.locate())) for f in distribution.files or [] if f.suffix == ".py"]
            yield name, distribution.version, licence, files


def _licence(distribution: metadata.Distribution) -> str:
    """Return what a distribution declares (expression, classifiers, or a short licence field), "" when unknown."""
    about: Any = distribution.metadata
    classifiers = [
        c.rsplit("::", 1)[-1].strip() for c in about.get_all("Classifier") or [] if c.startswith("License")
    ]
    declared = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    return declared if len(declared) < 120 else ""


def _read(source: str, path: Path) -> Document | None:
    """Return a file that reads like code; None for others."""
    packages = "site-packages"
    inside = path.parts[path.parts.index(packages) + 1 :] if packages in path.parts else path.parts[-4:]
    if _SKIPPED_FOLDERS.intersection(inside[:-1]) or path.name.startswith("test_"):
        return None
    try:
        if not _MIN_FILE_BYTES <= path.stat().st_size <= _MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    lines = text.splitlines()
    printable = sum(c.isascii() for c in text) / len(text)
    like_code = printable > 0.99 and len(text) / max(len(lines), 1) < 60 and max(map(len, lines)) < 400
    return Document(source, "/".join(inside), text) if like_code else None


def _first_bytes(documents: Iterable[Document], seen: set[int]) -> list[Document]:
    kept: list[Document] = []
    total = 0
    for document in documents:
        if total + len(document.text) > _MAX_SOURCE_BYTES:
            break
        if document.digest not in seen:
            seen.add(document.digest)
            kept.append(document)
            total += len(document.text)
    return kept


def prompts_from(documents: Iterable[Document], count: int) -> list[str]:
    """Return openings of real code, one per document, each ending inside the body of a function.

    No line break at the end: alone it is a token of its own, which in the corpus stands before the end of a file.
    Documents of as many different sources as possible are used first, so that one large package does not dominate.
    """
    by_source: dict[str, list[str]] = defaultdict(list)
    for document in documents:
        if found := _OPENING.search(document.text):
            by_source[document.source].append(found[0])
    in_turn = chain.from_iterable(zip_longest(*by_source.values()))
    return [text for text in in_turn if text is not None][:count]
