from textwrap import dedent

import pytest

from clover.data.slices import KINDS, cut_plain, cut_python
from clover.errors import UserError

SOURCE = dedent('''\
    # One comment,
    # and a second line,
    # and a third.
    # And a fourth.
    import os
    import re
    import sys

    TABLE = {
        "a": 1,
        "b": 2,
        "c": 3,
    }


    class Shape:
        """A shape.

        It has sides.
        And corners.

        >>> Shape().sides
        3
        >>> Shape().corners
        3
        """

        sides = 3
        corners = 3

        def area(self, unit):
            """Its area."""
            for side in range(self.sides):
                total = side
                unit += total
            if unit:
                unit = 1
                return unit
            try:
                unit = os.name
            except OSError:
                unit = 0
                raise
            return unit
    ''')


def marked(source: str) -> dict[str, str]:
    """Of each kind, the last line before its first cut and the line after it."""
    found: dict[str, str] = {}
    for cut in cut_python(source, "a file"):
        before, after = source[: cut.end].splitlines()[-1].strip(), source[cut.end :].splitlines()[0].strip()
        found.setdefault(cut.kind, f"{before} | {after}")
    return found


def test_there_are_ten_kinds_each_cut_inside_itself() -> None:
    assert len(KINDS) == 10
    assert marked(SOURCE) == {
        "comments": "# One comment, | # and a second line,",
        "imports": "import os | import re",
        "data": 'TABLE = { | "a": 1,',
        "classes": " | sides = 3",
        "docstrings": '"""A shape. | ',
        "examples": ">>> Shape().sides | 3",
        "functions": '"""Its area.""" | for side in range(self.sides):',
        "loops": "for side in range(self.sides): | total = side",
        "branches": "if unit: | unit = 1",
        "errors": "except OSError: | unit = 0",
    }


def test_cuts_are_in_order_at_line_starts_and_one_per_line() -> None:
    cuts = cut_python(SOURCE, "a file")
    ends = [cut.end for cut in cuts]
    assert ends == sorted(set(ends))
    assert all(SOURCE[end - 1] == "\n" for end in ends)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x = 1\n",
        "if x: y = 1\n",  # on one line
        "for x in y:\n    pass\n",  # nothing follows the cut line
        "# a comment\nx = 1\n",
        'text = """\n# no comment\n# no comment\n# no comment\n"""\n',
    ],
)
def test_what_is_too_short_gives_no_cut(source: str) -> None:
    assert cut_python(source, "a file") == []


def test_a_function_is_cut_above_its_body_and_the_smallest_block_names_a_line() -> None:
    source = "def f():\n    @wraps\n    def g():\n        a = 1\n        return a\n    return g\n"
    assert [(cut.kind, source[cut.end :].splitlines()[0]) for cut in cut_python(source, "a file")] == [
        ("functions", "    @wraps"),
        ("functions", "        a = 1"),
    ]
    nested = "while a:\n    if b:\n        c = 1\n        d = 1\n"
    assert [(cut.kind, cut.end) for cut in cut_python(nested, "a file")] == [("loops", 9), ("branches", 19)]


def test_lines_are_counted_as_python_counts_them() -> None:
    source = 'x = "\u2028"  # a line separator is no line end\n\x0c\nfor a in b:\n    c = 1\n    d = 1\n'
    (cut,) = cut_python(source, "a file")
    assert source[: cut.end].endswith("for a in b:\n")


@pytest.mark.parametrize(
    "source", ["def f(:\n", "x = '\n", "print 1\n", "(" * 5000, "if x:\n\ty\n        z\n"]
)
def test_what_is_not_python_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(UserError, match="^odd.py is not Python source that can be parsed: ") as error:
        cut_python(source, "odd.py")
    assert "\n" not in str(error.value)


def test_code_with_odd_escapes_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    cut_python('x = "\\d"\n', "a file")
    assert not recwarn.list


def test_plain_text_is_cut_at_line_ends_every_2000_characters() -> None:
    text = "".join(f"line {i:04d} of a long text\n" for i in range(300))
    cuts = cut_plain(text, "book")
    assert [cut.kind for cut in cuts] == ["book"] * 3
    assert all(text[cut.end - 1] == "\n" for cut in cuts)
    assert [cut.end // 2000 for cut in cuts] == [1, 2, 3]
    assert [cut.end for cut in cut_plain("x" * 5000, "book")] == [2000, 4000]
    assert [cut.end for cut in cut_plain("short text", "book")] == [5]
