"""The command that times vLLM's steps, run as docs/vllm.md says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clover import assets
from clover.integrations.vllm.costs import numbers_to_time


def run_costs(draft: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clover.integrations.vllm.costs", str(assets.TARGET), str(draft), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
    )


def test_the_command_times_steps(drafts, tmp_path):
    settings = json.dumps({"dtype": "float32", "enforce_eager": True})
    chosen = ("--batch-size", "1", "--drafted", "1", "--settings", settings)
    done = run_costs(drafts["clover1"], str(tmp_path / "costs.json"), *chosen)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "costs.json").read_text())
    ((size, drafted, seconds),) = [step.values() for step in found["steps"]]
    assert (size, drafted, seconds > 0) == (1, 1, True)


@pytest.mark.parametrize(
    ("draft", "arguments", "message"),
    [
        ("clover1", ("--drafted", "4"), "this Clover-1 draft has 3 heads: it cannot draft 4 tokens"),
        ("none", (), "config.json"),
        ("clover1", ("--settings", "[1]"), "--settings is not a JSON object"),
    ],
)
def test_what_cannot_be_timed_is_one_line_and_code_2(draft, arguments, message, drafts, tmp_path):
    done = run_costs(drafts.get(draft, tmp_path / draft), str(tmp_path / "costs.json"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1


def test_where_nothing_can_be_written_nothing_is_timed(drafts, tmp_path):
    done = run_costs(drafts["clover1"], str(tmp_path), "--drafted", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path} is a directory; give the name of a file\n"


@pytest.mark.parametrize(("most", "expected"), [(3, [0, 1, 3]), (4, [0, 1, 3, 4]), (8, [0, 1, 3, 5, 8])])
def test_no_more_tokens_are_timed_than_a_draft_has_heads(most, expected):
    assert numbers_to_time(most) == expected
