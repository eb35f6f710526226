"""Where to cut a text into prompts whose continuations are of one kind: a file of source code holds ten kinds of text.

A prompt ends inside the kind it is named after, so that what follows is of that kind. They stand for the ten kinds of
dialogue of Clover-1 (arXiv 2405.00263, §4) where the target is too small for dialogues.
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from clover.errors import UserError, one_line

KINDS = (
    *("comments", "docstrings", "examples", "imports", "data"),
    *("classes", "functions", "branches", "loops", "errors"),
)
_FEWEST_LINES = 2  # of its kind that still follow a cut
_STRIDE = 2000  # characters between two cuts of a text without structure
_EXAMPLE = re.compile(r"\s*>>> ")
_LITERALS = (ast.Dict, ast.List, ast.Set, ast.Tuple)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BODIES = {
    ast.ClassDef: "classes",
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), "functions"),
    ast.If: "branches",
    **dict.fromkeys((ast.For, ast.AsyncFor, ast.While), "loops"),
}


class Cut(NamedTuple):
    """A prompt may end before character `end` of the text; what follows there is text of `kind`."""

    kind: str
    end: int


class _Block(NamedTuple):
    """Lines of one kind, from 1: a prompt ends before line `cut`, the kind goes on to line `last`."""

    kind: str
    cut: int
    last: int


def cut_python(text: str, where: str) -> list[Cut]:
    r"""The cuts of a Python source file, in order, at most one per line; UserError if this interpreter cannot parse it.

    >>> source = "import re\nimport os\nimport sys\n\nfor x in y:\n    a = 1\n    b = 2\n"
    >>> [(cut.kind, source[: cut.end][-8:]) for cut in cut_python(source, "a file")]
    [('imports', 'port re\n'), ('loops', 'x in y:\n')]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of somebody else's code
            tree = ast.parse(text)
        blocks = list(_blocks(tree, text))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise UserError(f"{where} is not Python source that can be parsed: {one_line(error)}") from error
    chosen: dict[int, str] = {}
    for block in sorted(blocks, key=lambda one: one.last - one.cut):  # the smallest names a line best
        if block.last - block.cut + 1 >= _FEWEST_LINES:
            chosen.setdefault(block.cut, block.kind)
    starts = list(accumulate(map(len, io.StringIO(text)), initial=0))
    return [Cut(kind, starts[line - 1]) for line, kind in sorted(chosen.items())]


def cut_plain(text: str, kind: str) -> list[Cut]:
    """Cuts of any other text, about every 2,000 characters, each after a whole line where lines are that short."""
    ends = [(text.find("\n", at, at + _STRIDE) + 1) or at for at in range(_STRIDE, len(text), _STRIDE)]
    return [Cut(kind, end) for end in ends or [(len(text) + 1) // 2]]


def _blocks(tree: ast.Module, text: str) -> Iterator[_Block]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [t.start[0] for t in tokens if t.type == tokenize.COMMENT and t.line.lstrip().startswith("#")]
    yield from _runs("comments", comments)
    nodes: list[Any] = list(ast.walk(tree))
    imports = [node for node in nodes if type(node) in (ast.Import, ast.ImportFrom)]
    yield from _runs("imports", {n for node in imports for n in range(node.lineno, node.end_lineno + 1)})
    lines = text.split("\n")
    for node in nodes:
        yield from _of_node(node, lines)


def _of_node(node: Any, lines: list[str]) -> Iterator[_Block]:
    kind = type(node)
    if kind in _LITERALS:
        yield _after_a_third("data", node.lineno, node.end_lineno)
    elif kind is ast.Try and node.handlers:
        yield from _below("errors", node.handlers[0], node.handlers[0].body, node.end_lineno)
    documented = kind in _DOCUMENTED and ast.get_docstring(node, clean=False) is not None
    if documented:
        yield from _of_docstring(node.body[0], lines)
    if kind in _BODIES:
        yield from _below(_BODIES[kind], node, node.body[documented:], node.body[-1].end_lineno)


def _of_docstring(docstring: Any, lines: list[str]) -> Iterator[_Block]:
    first, last = docstring.lineno, docstring.end_lineno
    examples = (n for n in range(first, last + 1) if _EXAMPLE.match(lines[n - 1]))
    prose = max(first, next(examples, last + 1) - 1)
    yield _after_a_third("docstrings", first, prose)
    if prose < last:
        yield _after_a_third("examples", prose + 1, last)


def _below(kind: str, head: Any, body: list[Any], last: int) -> Iterator[_Block]:
    """The body under the line that opens it, unless it stands on that line."""
    if body and body[0].lineno > head.lineno:
        decorators = getattr(body[0], "decorator_list", [])
        yield _Block(kind, min(node.lineno for node in (body[0], *decorators)), last)


def _runs(kind: str, lines: Iterable[int]) -> Iterator[_Block]:
    """The runs of consecutive line numbers."""
    for _, run in groupby(enumerate(sorted(lines)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield _after_a_third(kind, numbers[0], numbers[-1])


def _after_a_third(kind: str, first: int, last: int) -> _Block:
    return _Block(kind, first + max(1, (last - first + 1) // 3), last)
