"""A suite small enough to be run in a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.compare.runs import compare
from tests.tiny import save_tiny_pair

SUITE = """
name = "tiny"
title = "A tiny one"
target = "{target}"

[text]
files = ["texts.jsonl"]
texts = 12
max_length = 32
prompt_tokens = 4
batch_size = 12

[training]
batch_tokens = 128
losses = ["paper"]
steps = [3]

[losses.labels]
label_weight = 1.0

[[systems]]
system = "clover1"
options = {{ num_heads = 3 }}
trees = ["chain:1", "chain:2", "chain:3"]

[[systems]]
name = "labelled"
system = "clover1"
options = {{ num_heads = 3 }}
losses = ["labels"]
trees = []
against = "clover1"

[measuring]
batch_sizes = [1, 2]
temperatures = [0.0]
rounds = 2
max_new_tokens = 8
prompts = 3

[[tasks]]
name = "lines"
file = "lines.txt"

[[tasks]]
name = "more"
file = "more.txt"
"""


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, texts, prompts and a suite file."""
    folder = tmp_path_factory.mktemp("compare")
    target, _ = save_tiny_pair(folder)
    rows = [{"text": f"number {i} is followed by number {i + 1} and so on"} for i in range(20)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lines.txt").write_text("one two\nthree four\none two\nfive six\nseven\n")
    (folder / "more.txt").write_text("a b\nc d\ne f\n")
    (folder / "suite.toml").write_text(SUITE.format(target=target))
    return folder


@pytest.fixture(scope="session")
def finished(tiny_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "out"
    compare(tiny_files, output)
    return output
