"""What holds for every file of the repository, whatever it does."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import pytest

import clover

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.py"))
PYTHON_FILES = SOURCES + EXPERIMENTS + sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 50
TEXT_ENDINGS = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ""}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def run_python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout + done.stderr


def test_files_and_functions_fit_the_eye() -> None:
    long = [name(path) for path in PYTHON_FILES if path.read_text("utf-8").count("\n") > MAX_FILE_LINES]
    long += [
        f"{name(path)}, {f.name}"
        for path in PYTHON_FILES
        for f in functions(path)
        if (f.end_lineno or 0) - f.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long


def test_public_arguments_are_annotated() -> None:
    bare = [
        f"{name(path)}, {function.name}({argument.arg})"
        for path in SOURCES + EXPERIMENTS
        for function in functions(path)
        if not function.name.startswith("_")
        for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        if argument.annotation is None and argument.arg not in {"self", "cls"}
    ]
    assert not bare


def test_nothing_unpickles() -> None:
    call = re.compile(r"\btorch\.(load|save)\(|weights_only|allow_pickle=True")
    modules = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"}
    for path in SOURCES + EXPERIMENTS:
        assert not call.search(path.read_text("utf-8")), name(path)
        assert not modules.intersection(imports(ast.walk(syntax(path)))), name(path)


def test_model_internals_stay_in_their_place() -> None:
    inside = re.compile(r"src/clover/(cache|target|cpu|drafts|integrations)/")
    internal = re.compile(r"transformers\.(models|modeling|masking|cache)")
    for path in SOURCES:
        if not inside.match(name(path)):
            assert not [i for i in imports(ast.walk(syntax(path))) if internal.match(i)], name(path)


LIGHT = [path for path in SOURCES if path.parent.name == "cli" or path.name == "options.py"]


def test_commands_and_their_options_import_nothing_heavy_at_the_top() -> None:
    light = r"clover(\.(__version__|errors|files|cli|\w*options|\w+\.options).*)?|typer(\.core)?"
    for path in LIGHT:
        for module in imports(syntax(path).body):
            known = module.split(".")[0] in sys.stdlib_module_names or re.fullmatch(light, module)
            assert known, f"{name(path)} imports {module}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module(path): imported_modules(path) for path in SOURCES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def module(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = frozenset(map(module, SOURCES))


def imported_modules(path: Path) -> set[str]:
    """Modules of this package that a file imports, also inside functions and for type checkers alone."""
    known, found = MODULES, set()
    for full in imports(ast.walk(syntax(path))):
        found |= {full} & known or {full.rpartition(".")[0]} & known
    return found - {module(path)}


# Words that begin a fragment, where a docstring of a function is to begin with what the function does.
FRAGMENT = re.compile(
    r"(What|The|Whether|Those|These|This|Where|How|That|When|Which|Who|Why|A|An|All|Each|Every|Both|One|Its|It|In|Of|"
    r"As|For|From|With|On|By|Tokens|Positions|Texts|States|Rows|Options|UserError|None|True|False)\b|[^A-Z]"
)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    first = [(name(path), ast.get_docstring(each)) for path in SOURCES for each in functions(path)]
    said = [(where, text) for where, text in first if text is not None]
    fragments = [f"{where}: {text.splitlines()[0]}" for where, text in said if FRAGMENT.match(text)]
    assert len(fragments) <= 0.05 * len(said), "\n".join(fragments)


# Lines, files and public names of each room. Raising a number is a decision: its reason stands beside it.
BUDGET = {
    "__init__": (30, 1, 0),  # huge pages
    "__main__": (6, 1, 0),
    "api": (
        388,
        1,
        6,
    ),  # plain answers; conversations, grammars, chat_template_kwargs; errors keep other texts; unknown marks warn
    "assets": (20, 1, 0),
    # time that is kept to a step, and names of what it left out; int8 weights; exact targets
    # compiled steps of exact targets are refused before loading
    "audit": (1233, 9, 23),
    # keys and values as whole numbers
    "cache": (715, 4, 12),  # rows that are cleared of NaN; uneven rows written where their texts end
    "chat": (843, 16, 18),  # formats one file each; forced calls, as elements, too; templates that lose text
    # of what text an estimate is; notes of the log, chats beside plain decoding, the weight cache, features, grammar,
    # tools, budgets of time
    "cli": (1364, 14, 35),
    # attention of whole numbers, functions that are alike everywhere
    # int8 targets: products of several heads, and of parts; how loud outliers may be; kept weights
    # exact copies of models with plain weights: products of as many rows
    # what is slower or not packed is said at loading
    "cpu": (1824, 13, 57),
    # records in the forms that users bring, with weights and options; whole tags; states that are no numbers; records
    # that show more than text, in tables, too; compressed files and deep records are named; names that contradict
    # answers that were not written are counted
    "data": (2683, 16, 62),
    # drafting under grammars; an example of a level, and what a policy may know; for which weights a tuning is
    "drafting": (1716, 16, 49),
    # starting values whatever the default dtype is, and what they are; how near a target is to a draft's own; files
    # that hold less than they describe
    # a choice of the mixture without rows of the whole vocabulary, which took minutes
    "drafts": (2418, 17, 77),  # trained drafts note more of their target; EAGLE-3.1
    # counts finite logits, which `verify` did; compiled steps that are refused before loading
    "engine": (
        1938,
        19,
        37,
    ),  # scores that processors spoil end a text; texts that cannot go on: again plainly, their last text; stop strings
    "errors": (78, 1, 5),  # the table of all that was removed or is elsewhere; an error that holds results
    "grammar": (200, 1, 3),  # states of texts, which drafting shares
    "files": (297, 1, 17),  # half characters, which three rooms looked for
    "integrations": (1318, 10, 23),  # refuses models that prepare their inputs otherwise
    # time that is kept to a step, with names of what it left out
    # no tuning in a package; texts of exact targets; the tests of draws, which the audit had
    # one sentence about what was left out, in place of three
    "measure": (4867, 33, 147),
    "metrics": (90, 1, 1),
    "options": (301, 1, 10),  # --threads, --grammar, --compare, --exact; the name of an option in messages
    "packaged": (173, 1, 8),  # drafts of all installed packages, in the place of assets' own for one model
    "reference": (88, 1, 2),  # refuses NaN
    "rejection": (53, 1, 2),
    "sampling": (1110, 11, 16),  # draws that hash little; scores that processors spoil are an error
    "serve": (
        1943,
        12,
        38,
    ),  # two names of one field; tools, forced calls, reasoning, benchmark clients, formats, text before an error
    # whether a target is exact, which may be asked for
    # keeps converted weights, reads GGUF files itself: each fact followed or refused, tokens split right
    "target": (
        3248,  # dtypes are compared with as many rows as will be run
        22,
        74,
    ),  # an index of weights is read at one place; int8 weights and calibrations are kept, also of names on the hub
    # pictures and sounds are refused, and messages without a role
    # half characters and two names of reasoning; what a template reads is tried out, and what it drops is an error
    "templates": (562, 5, 19),
    # of whose text τ is estimated; steps of wide targets are larger
    "train": (2084, 14, 54),  # measures held-out texts again when the vocabulary was cut
    "tree": (279, 4, 3),  # roots left alone
    "validation": (163, 1, 9),
    "verify": (110, 1, 3),
    "verify_host": (70, 1, 1),
    "write": (266, 1, 4),  # progress before a text ends; tools are kept in what is written
}


def room(path: Path) -> str:
    """The folder of the package that a source file lies in, or its own name at the top."""
    return path.relative_to(ROOT / "src/clover").parts[0].removesuffix(".py")


def test_rooms_stay_within_their_budget() -> None:
    lines, files, names = Counter[str](), Counter[str](), Counter[str]()
    for path in SOURCES:
        lines[room(path)] += path.read_text(encoding="utf-8").count("\n")
        files[room(path)] += 1
        names[room(path)] += sum(
            not each.name.startswith("_")
            for each in syntax(path).body
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )
    assert set(lines) == set(BUDGET)
    for where, most in BUDGET.items():
        used = lines[where], files[where], names[where]
        assert all(own <= limit for own, limit in zip(used, most, strict=True)), (
            f"{where} uses {used} of {most}"
        )


def test_text_files_name_no_machine() -> None:
    # Put together so that this file does not name them either.
    places = ["/" + place + "/" for place in ("work", "opt", "root", "home", "Users")]
    for path in tracked_text():
        text = path.read_text(encoding="utf-8")
        assert not [place for place in places if re.search(rf"(?<![\w.~-]){place}", text)], name(path)


def tracked_text() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for entry in listed.stdout.split("\0"):
        path = ROOT / entry
        if entry and path.suffix in TEXT_ENDINGS and path.is_file() and path.stat().st_size < 1_000_000:
            yield path


def test_workers_of_n_alone_take_tests_from_each_other(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))
    assert conftest is not None
    for asked, used in (("load", "worksteal"), ("loadfile", "loadfile"), ("no", "no")):
        option = SimpleNamespace(dist=asked)
        conftest.pytest_configure(SimpleNamespace(option=option, getoption=vars(option).get))
        assert option.dist == used


def test_importing_clover_does_not_import_torch() -> None:
    assert run_python("-c", "import clover, sys; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["generate", "--help"], ["train", "--help"]]
)
def test_help_is_instant(arguments: list[str]) -> None:
    seen = run_python("-X", "importtime", "-m", "clover", *arguments)
    loaded = set(re.findall(r"\|\s+([\w.]+)$", seen, flags=re.MULTILINE))
    assert "clover.cli.main" in loaded
    assert not {"torch", "transformers", "numpy", "matplotlib"}.intersection(loaded)


def test_load_is_the_python_interface() -> None:
    from clover.api import load

    assert clover.load is load
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        clover.lode  # noqa: B018


def test_the_table_of_equations_names_what_is_there() -> None:
    known = {each.name: each for path in SOURCES for each in syntax(path).body if hasattr(each, "name")}
    rows = [
        line.split("|")[-2]
        for line in (ROOT / "docs/development/equations.md").read_text().splitlines()
        if "|" in line
    ]
    named = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 40
    for word in named:
        first, _, part = word.partition(".")
        if "/" in word:
            assert (ROOT / word).is_file(), word
        elif part not in ("py", ""):
            members = ast.unparse(known[first])
            assert f"def {part}(" in members or f"{part} = " in members, word
        else:
            assert (
                part or first in known or f"{first} = " in (ROOT / "src/clover/tree/published.py").read_text()
            ), word
