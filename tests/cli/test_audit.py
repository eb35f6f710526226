"""The command from end to end, on the tiny pair."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clover.measure.report.output import Report
from clover.verify import verify
from tests.packages import describe, install_drafts
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    where = tmp_path_factory.mktemp("audit")
    target, draft = save_tiny_pair(where)
    prompts = where / "prompts.json"
    prompts.write_text(json.dumps({"prompts": ["def area(self):", "import os"]}))
    models = ("--target", target, "--draft", draft, "--prompts", prompts)
    return ["audit", *models, "--max-new-tokens", 6, "--batch-size", 2, "--tree", "clover2"]


def test_a_clean_audit_writes_its_report(
    run_clover: Callable, arguments: list[object], tmp_path: Path
) -> None:
    page, data = tmp_path / "audit.html", tmp_path / "audit.json"
    done = run_clover(*arguments, "--html", page, "--json", data, "--temperature", 0)
    assert done.code == 0, done.err
    assert "Clean: output is unchanged, token by token" in done.out
    found = json.loads(data.read_text())
    names = ("verdict", "tokens", "mismatches", "near_ties", "defects", "sampled_p_value")
    assert [found[name] for name in names] == ["clean", 24, 0, 0, 0, None]
    assert found["provenance"]["dtype"] == "float32"
    assert "Clean: output is unchanged" in page.read_text()


def test_files_are_written_though_nobody_reads_the_report(
    run_clover: Callable, arguments: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(Report, "print", closed)
    page, data = tmp_path / "audit.html", tmp_path / "audit.json"
    with pytest.raises(SystemExit):
        run_clover(*arguments, "--temperature", 0, "--max-prompts", 1, "--html", page, "--json", data)
    assert page.is_file() and data.is_file()


def test_json_ends_standard_output(run_clover: Callable, arguments: list[object], tmp_path: Path) -> None:
    few = ("--temperature", 0, "--max-prompts", 1)
    done = run_clover(*arguments, *few, "--html", tmp_path / "audit.html", "--json", "-")
    assert json.loads(done.out.splitlines()[-1])["verdict"] == "clean"


def test_a_defect_is_an_exit_code(
    run_clover: Callable, arguments: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A draft token too many is accepted; the key of a server is in no report."""

    def careless(tree: object, choices: object) -> object:
        honest = verify(tree, choices)  # type: ignore[arg-type]
        return dataclasses.replace(
            honest,
            tokens=torch.cat((tree.tokens[:, 1:2], honest.tokens[:, 1:]), dim=1),  # type: ignore[attr-defined]
        )

    monkeypatch.setattr("clover.verify.verify", careless)
    data = tmp_path / "audit.json"
    done = run_clover(*arguments, "--temperature", 0, "--json", data, "--api-key", "very-secret")
    assert done.code == 1
    found = json.loads(data.read_text())
    assert found["verdict"] == "defect" and found["defects"] > 0 and found["mismatches"] > 0
    first = next(one for method in found["methods"] for one in method["mismatches"] if one["defect"])
    assert {"prompt", "position", "expected", "token", "gap"} <= set(first)
    assert "Defect: output is changed" in done.out
    assert re.search(r"method +prompt +position +expected", done.out)
    assert "very-secret" not in done.out + data.read_text()


def facts(arguments: list[object], run_clover: Callable, where: Path) -> tuple[str, dict[str, Any]]:
    """What an audit without --draft prints, and its JSON."""
    data, at = where / "audit.json", arguments.index("--draft")
    more = ("--temperature", 0, "--max-prompts", 1, "--json", data)
    done = run_clover(*arguments[:at], *arguments[at + 2 :], *more)
    assert done.code == 0, done.out + done.err
    return done.out, json.loads(data.read_text())


def test_the_draft_of_a_package_is_found_by_its_target(
    run_clover: Callable, arguments: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target, draft = (Path(str(arguments[arguments.index(name) + 1])) for name in ("--target", "--draft"))
    site = install_drafts(tmp_path / "site", "tiny-drafts", "tiny", {"clover2": draft}, monkeypatch)
    describe(site / "clover2", target)
    said, found = facts(arguments, run_clover, tmp_path)
    assert found["draft"] == "tiny/clover2" and "1 prompt," in said
    assert any(method["name"].startswith("clover2, ") for method in found["methods"])


def test_only_trees_of_a_draft_need_one(
    run_clover: Callable, arguments: list[object], tmp_path: Path
) -> None:
    at = arguments.index("--draft")
    done = run_clover(*arguments[:at], *arguments[at + 2 :])
    assert done.code == 2 and "a target was given but no draft" in done.err and done.err.count("\n") == 1
    with_lookup = [*arguments[: arguments.index("--tree")], "--tree", "lookup"]
    assert facts(with_lookup, run_clover, tmp_path)[1]["draft"] == "none"


def test_where_no_tree_is_named_all_kinds_are_audited(
    run_clover: Callable, arguments: list[object], tmp_path: Path
) -> None:
    data, flags = tmp_path / "audit.json", arguments[: arguments.index("--tree")]
    done = run_clover(*flags, "--temperature", 0, "--max-prompts", 1, "--json", data)
    assert done.code == 0, done.out + done.err
    found = json.loads(data.read_text())
    assert found["draft"] == str(flags[flags.index("--draft") + 1])
    ways = {method["name"].split(",")[0] for method in found["methods"]}
    assert ways == {"plain", "auto", "chain:4", "own", "lookup"}  # chain:4 is one that auto may choose


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--plain-server", "http://x"],
            "without --server, no server is audited; leave out --plain-server",
        ),
        (["--model", "x"], "leave out --model"),
        (["--server", "http://x", "--target", "x", "--draft", "y"], "leave out --target, --draft\n"),
        (["--server", "http://x", "--tree", "lookup"], "leave out --tree\n"),
        (["--server", "http://x", "--dtype", "float32", "--device", "cpu"], "leave out --dtype, --device\n"),
        (["--server", "http://x", "--trust-remote-code"], "leave out --trust-remote-code\n"),
        (["--server", "http://x", "--compile"], "leave out --compile\n"),
        (["--server", "http://x", "--weights", "int8"], "leave out --weights\n"),
        (["--tree", "hedge"], "hedge"),
        (
            ["--draft", "x", "--tree", "lookup", "--tree", "plain"],
            "leave --draft out, or name another --tree\n",
        ),
        (["--prompts", "missing.json"], "missing.json"),
        (["--html", "."], "directory"),
        (["--against", "transformers"], "every token is compared with the model"),
        (["--no-float32"], "--dtype float32"),
    ],
)
def test_bad_input_is_one_line(run_clover: Callable, more: list[str], message: str) -> None:
    done = run_clover("audit", *more)
    assert done.code == 2 and message in done.err
    assert done.err.startswith("clover: error: ") and done.err.count("\n") == 1
