"""What README and docs say can be typed: every command parses, and every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from clover.cli.main import app
from experiments.compare.__main__ import app as compare
from experiments.recipes.__main__ import app as recipes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "experiments/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "experiments/data/README.md", *sorted((ROOT / "drafts").rglob("README.md"))]
PROGRAMS = {
    ("clover",): app,
    ("python", "-m", "experiments.compare"): compare,
    ("python", "-m", "experiments.recipes"): recipes,
}


def commands(page: Path) -> Iterator[tuple[list[str], bool]]:
    """The words of each command, and whether it is whole: in a block of code it is, in a sentence it may not be."""
    text = re.sub(r" *\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^(?: {4,}|\$ )((?:clover|python|pytest) .*)$", text, flags=re.MULTILINE)
    parts = re.findall(r"`((?:clover|python -m) [a-z.]+ [^`]+)`", text)
    for line in [*blocks, *parts]:
        if "…" not in line:
            yield shlex.split(line, comments=True), line in blocks


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse(page: Path) -> None:
    for words, whole in commands(page):
        for start, program in PROGRAMS.items():
            if tuple(words[: len(start)]) == start:
                assert (found := problem(program, words[len(start) :])) is None or (
                    not whole and "Missing" in found
                ), (words, found)
        files = [word for word in words if re.match(r"(benchmarks|tests)/\S+", word)]
        assert all((ROOT / file).exists() for file in files), words


def problem(program: typer.Typer, words: list[str]) -> str | None:
    """Parse a command line without running it; returns what is wrong with it."""
    command: Any = typer.main.get_command(program)
    try:
        context = command.make_context("clover", list(words))
        if hasattr(command, "commands"):  # one of several
            inner = command.get_command(context, words[0])
            if inner is None:
                return f"no command {words[0]}"
            inner.make_context(words[0], words[1:], parent=context)
    except Exception as error:  # noqa: BLE001 (the usage errors of typer have no public class)
        return type(error).__name__
    return None


def test_mistakes_in_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 60
    assert problem(app, ["bench", "--batch-size", "4"]) is None
    for wrong in (
        ["bench", "--nothing"],
        ["nothing"],
        ["train", "--data", "x.jsonl"],
        ["bench", "--batch-size", "x"],
    ):
        assert problem(app, wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if not re.match(r"\w+://", link):
            place = page.parent / file if file else page
            assert place.exists(), link
            assert not anchor or anchor in anchors(place), link


def anchors(page: Path) -> list[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
