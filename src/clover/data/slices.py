"""Where to cut a text into prompts whose continuations are of one kind: a file of source code holds ten kinds of text.

A prompt ends inside the kind it is named after (below a `for` line, in the middle of a docstring), so that what the
target writes on is text of that kind. The ten kinds stand for the ten kinds of dialogue of Clover-1 (arXiv 2405.00263,
§4) where the target is too small for dialogues.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from clover.errors import UserError, one_line

KINDS = (
    *("comments", "docstrings", "examples", "imports", "data"),
    *("classes", "functions", "branches", "loops", "errors"),
)
_FEWEST_LINES = 2  # of its kind that still follow a cut
_STRIDE = 2000  # characters between two cuts of a text without structure
_EXAMPLE = re.compile(r"\s*>>> ")


@dataclass(frozen=True)
class Cut:
    """A prompt may end before character `end` of the text; what follows there is text of `kind`."""

    kind: str
    end: int


@dataclass(frozen=True)
class _Block:
    """Lines of one kind, from 1: a prompt ends before line `cut`, the kind goes on to line `last`."""

    kind: str
    cut: int
    last: int


def cut_python(text: str, where: str) -> list[Cut]:
    r"""The cuts of a Python source file, in the order of the text, at most one per line.

    Raises:
        UserError: it is not Python that this interpreter can parse.

    >>> source = "import re\nimport os\nimport sys\n\nfor x in y:\n    a = 1\n    b = 2\n"
    >>> [(cut.kind, source[: cut.end][-8:]) for cut in cut_python(source, "a file")]
    [('imports', 'port re\n'), ('loops', 'x in y:\n')]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of somebody else's code
            tree = ast.parse(text)
        blocks = [*_of_lines(text), *_of_statements(tree, text.split("\n"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise UserError(f"{where} is not Python source that can be parsed: {one_line(error)}") from error
    chosen: dict[int, str] = {}
    for block in sorted(
        blocks, key=lambda block: block.last - block.cut
    ):  # the smallest block names the line best
        if block.last - block.cut + 1 >= _FEWEST_LINES:
            chosen.setdefault(block.cut, block.kind)
    starts = _line_starts(text)
    return [Cut(kind, starts[line - 1]) for line, kind in sorted(chosen.items())]


def cut_plain(text: str, kind: str) -> list[Cut]:
    """Cuts of any other text, about every 2,000 characters, each after a whole line where lines are that short."""
    ends = []
    for at in range(_STRIDE, len(text), _STRIDE):
        line_end = text.find("\n", at, at + _STRIDE) + 1
        ends.append(line_end or at)
    return [Cut(kind, end) for end in ends or [(len(text) + 1) // 2]]


def _of_lines(text: str) -> Iterator[_Block]:
    """Blocks of whole-line comments."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [t.start[0] for t in tokens if t.type == tokenize.COMMENT and t.line.lstrip().startswith("#")]
    for first, last in _runs(lines):
        yield _after_a_third("comments", first, last)


def _of_statements(tree: ast.Module, lines: list[str]) -> Iterator[_Block]:
    imports = [
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, _last_line(node) + 1)
    ]
    for first, last in _runs(sorted(set(imports))):
        yield _after_a_third("imports", first, last)
    for node in ast.walk(tree):
        yield from _of_node(node, lines)


def _of_node(node: ast.AST, lines: list[str]) -> Iterator[_Block]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _of_docstring(node, lines)
    if isinstance(node, ast.ClassDef):
        yield from _below("classes", node, _code(node))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _below("functions", node, _code(node))
    elif isinstance(node, ast.If):
        yield from _below("branches", node, node.body)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
        yield from _below("loops", node, node.body)
    elif isinstance(node, ast.Try) and node.handlers:
        yield from _below("errors", node.handlers[0], node.handlers[0].body, _last_line(node))
    elif isinstance(node, ast.Dict | ast.List | ast.Set | ast.Tuple):
        yield _after_a_third("data", node.lineno, _last_line(node))


def _of_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> Iterator[_Block]:
    if not _has_docstring(node):
        return
    first, last = node.body[0].lineno, _last_line(node.body[0])
    prose = first
    for number in range(first, last + 1):
        if _EXAMPLE.match(lines[number - 1]):
            break
        prose = number
    yield _after_a_third("docstrings", first, prose)
    if prose < last:
        yield _after_a_third("examples", prose + 1, last)


def _below(kind: str, head: ast.AST, body: list[ast.stmt], last: int | None = None) -> Iterator[_Block]:
    """The body under the line that opens it, unless it stands on that line."""
    if body and body[0].lineno > head.lineno:  # type: ignore[attr-defined]
        yield _Block(kind, _first_line(body[0]), last or _last_line(body[-1]))


def _after_a_third(kind: str, first: int, last: int) -> _Block:
    return _Block(kind, first + max(1, (last - first + 1) // 3), last)


def _code(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return node.body[1:] if _has_docstring(node) else node.body


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(node: ast.AST) -> int:
    return int(node.end_lineno)  # type: ignore[attr-defined]


def _runs(lines: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive line numbers."""
    for _, run in groupby(enumerate(lines), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1]


def _line_starts(text: str) -> list[int]:
    """Where each line starts, as Python counts lines, and the end of the text."""
    starts = [0]
    for line in io.StringIO(text):
        starts.append(starts[-1] + len(line))
    return starts
