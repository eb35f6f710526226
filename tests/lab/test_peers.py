"""`benchmarks/peers` with an engine that needs no model: protocol, turns, statistics, tables, and what is left out."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks.peers import measure, workers
from benchmarks.peers.__main__ import main
from benchmarks.peers.engines import ANCHOR, ENGINES, ROOT, Engine, choose
from benchmarks.peers.measure import Plan
from benchmarks.peers.peer import Settings
from benchmarks.peers.results import Block, Result, equal_texts, middle, newest, over_plain
from benchmarks.peers.table import tables
from benchmarks.peers.workers import PeerError, running
from clover.errors import UserError

FAKE = "tests.lab.fake_peer"
PROMPTS = [[5, 10 * i] for i in range(1, 4)]
BLANK = {"prompts": "counting", "digest": "d", "machine": "m", "threads": 1, "revision": "r", "command": "c"}


def settings(folder: Path, **fields: Any) -> Settings:
    given = {"target": "", "gguf": "", "assistant": "", "draft": "", "weights": "", "method": ""}
    return Settings(**given | fields, eos=(33,), threads=1, max_length=64, max_batch=4, made=str(folder))


def plan(folder: Path, *sizes: int, **fields: Any) -> Plan:
    return Plan(PROMPTS, list(sizes or [1]), 4, [1, 2, 3], settings(folder, **fields), BLANK)


def fake(family: str = "fake", weights: str = "bf16", method: str = "plain", **fields: Any) -> Engine:
    return Engine(family, FAKE, "", weights, method, **fields)


ANCHOR_FAKE = fake("clover")


@pytest.fixture(autouse=True)
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOADING", 60.0)


def test_a_worker_answers_and_leaves_nothing(tmp_path: Path) -> None:
    with running(fake(method="lookup", converts=True), settings(tmp_path, assistant="noise")) as worker:
        assert (tmp_path / "bf16-lookup").read_text() == "made"
        assert worker.ready["batches"] and worker.ready["versions"]["pytest"] == pytest.__version__
        found = worker.ask(do="generate", prompts=[[1], [31]], max_new_tokens=3)
        assert found["texts"] == [[2, 3, 4], [32, 33]] and 0 < found["seconds"] < 60
        assert worker.ask(do="perplexity", tokens=[1, 2]) == {"perplexity": 2.0}
        memory = worker.ask(do="memory")
        assert 1e6 < memory["own"] <= memory["peak"]
        number = worker._process.pid
        for _ in range(1000):  # it stands still while others are measured, as soon as it gets the signal
            state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state == "T":
                break
            time.sleep(0.01)
        assert state == "T"
    assert not Path(f"/proc/{number}").exists()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("load", "RuntimeError: no such model"),
        ("end", "it ended: the last words"),
        ("text", "wrote 0 texts for 1"),
    ],
)
def test_a_peer_that_fails_is_left_out_by_name(tmp_path: Path, fault: str, message: str) -> None:
    # The fault is the assistant's name, which the anchor does not look at.
    engines = [replace(ANCHOR_FAKE, module="tests.lab.sound_peer"), fake(), ENGINES["llama.cpp-Q8_0"]]
    found = list(measure.measure(engines, plan(tmp_path, 1, 2, assistant=fault)))
    failed = [one for one in found if one.engine == "fake-bf16"]
    assert [one.batch_size for one in failed] == [1, 2]
    assert all(message in (one.left_out or "") for one in failed)
    assert [one.left_out for one in found if one.engine == "llama.cpp-Q8_0"] == ["it needs --gguf"] * 2
    assert [(one.engine, one.left_out) for one in found[-2:]] == [(ANCHOR, None)] * 2


def test_without_its_anchor_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{ANCHOR}, .* failed: RuntimeError: no such model"):
        list(measure.measure([ANCHOR_FAKE, fake()], plan(tmp_path, assistant="load")))


def test_an_answer_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fake(), settings(tmp_path)) as worker:
        monkeypatch.setattr(workers, "ANSWERING", 0.0)
        with pytest.raises(PeerError, match="no answer within 0 seconds"):
            worker.ask(do="generate", prompts=[[1]], max_new_tokens=3)


def test_two_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    decode = measure._decode

    def noted(worker: Any, *rest: Any) -> Any:
        order.append(worker._process.pid)
        return decode(worker, *rest)

    monkeypatch.setattr(measure, "_decode", noted)
    engines = [ANCHOR_FAKE, fake(), fake(method="lookup"), fake(weights="single")]
    found = {(one.engine, one.batch_size): one for one in measure.measure(engines, plan(tmp_path, 1, 2))}
    anchor, plain = order[:2]
    assert order[:10] == [anchor, plain, plain, anchor, anchor, plain, anchor, plain, plain, anchor]
    assert {size: len(found["fake-bf16", size].blocks) for size in (1, 2)} == {1: 3, 2: 2}
    assert found["fake-single", 2].left_out == "it decodes one text at a time"
    drafted, own = found["fake-bf16-lookup", 1], found["fake-bf16", 1]
    assert drafted.plain == "fake-bf16" and equal_texts(drafted, own) == (3, 3)
    assert own.perplexity == 3.0 and own.perplexity_tokens == 3 and drafted.perplexity is None
    assert [block.tokens for block in own.blocks] == [4, 4, 3]  # the last ends by itself
    assert [block.tokens for block in found["fake-bf16", 2].blocks] == [8, 7]
    assert found[ANCHOR, 1].of_anchor.value == 1.0 and own.startup_seconds > 0


def test_memory_is_that_of_the_texts_of_each_batch_size(tmp_path: Path) -> None:
    engines = [ANCHOR_FAKE, fake(), fake(method="lookup")]
    found = list(measure.measure(engines, plan(tmp_path, 1, 4, assistant="memory")))
    for engine in (ANCHOR, "fake-bf16", "fake-bf16-lookup"):
        one, four = (one.peak_memory for one in found if one.engine == engine)
        assert 2**25 < one < four - 2 * 2**25 and four < 2**28, engine  # the perplexity took more


def test_converted_models_are_named_by_what_they_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("llama_cpp", "llama_cpp.llama_speculative", "openvino", "openvino_genai"):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    llama, genai = (import_module(f"benchmarks.peers.{name}") for name in ("llama", "genai"))

    def names(folder: Path, size: int) -> set[Any]:
        (folder / "model").mkdir(parents=True, exist_ok=True)
        for file in (folder / "model/weights", folder / "model.gguf"):
            file.write_bytes(b"x" * size)
            os.utime(file, (size, size))
        given = settings(tmp_path, gguf=str(folder / "model.gguf"), weights="Q8_0")
        return {llama._file(given), genai._place(given, str(folder / "model"))}

    first = names(tmp_path / "one", 1)
    assert names(tmp_path / "one", 1) == first and all(str(tmp_path) in str(name) for name in first)
    assert len(first | names(tmp_path / "other", 1) | names(tmp_path / "one", 2)) == 6


def block(seconds: float, anchor: float, *texts: str) -> Block:
    return Block(10, seconds, 20, anchor, list(texts) or ["a"])


def result(engine: str, *blocks: Block, **fields: Any) -> Result:
    known = ENGINES[engine]
    rest = {"batch_size": 1, "max_new_tokens": 8, "date": "2026-01-02T03:04:05+00:00"}
    return Result(engine=engine, plain=known.plain, blocks=list(blocks), **BLANK | rest | fields)


def test_ratios_are_taken_prompt_by_prompt() -> None:
    plain = result("vllm-bf16", block(2.0, 4.0), block(4.0, 4.0), block(1.0, 4.0))
    drafted = result("vllm-bf16-draft", block(1.0, 4.0), block(4.0, 8.0, "b"), block(1.0, 2.0))
    assert [one.ratio for one in plain.blocks] == [1.0, 0.5, 2.0]
    assert plain.of_anchor.value == 1.0 and plain.tokens_per_second == pytest.approx(30 / 7)
    found = over_plain(drafted, plain)  # 2 / 1, 1 / 0.5, 1 / 2
    assert found.value == 2.0 and found.error == pytest.approx(math.sqrt(math.pi / 6 * 0.75))
    assert equal_texts(drafted, plain) == (2, 3)
    assert middle([1.5]).error is None


def test_the_newest_result_that_ran_counts() -> None:
    old, new = result("vllm-bf16", block(1.0, 1.0)), result("vllm-bf16", block(2.0, 1.0))
    failed = result("vllm-bf16", left_out="it ended")
    (group,) = newest([old, new, failed]).values()
    assert group == {"vllm-bf16": new}
    assert len(newest([old, replace(old, max_new_tokens=9), replace(old, digest="other")])) == 3


def test_a_table_has_all_that_ran_and_says_what_did_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        result(
            "vllm-bf16-draft", block(1.0, 4.0), startup_seconds=9.0, peak_memory=3 * 10**9, own_memory=10**9
        ),
        result("vllm-bf16", block(2.0, 4.0), perplexity=3.25, perplexity_tokens=8, versions={"vllm": "1.0"}),
        result("llama.cpp-Q8_0", left_out="it needs --gguf"),
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    main(["table", str(file)])
    out = capsys.readouterr().out
    assert out.strip() == tables(lines)
    rows = [line for line in out.split("\n") if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2] == "| vllm-bf16 | 5.0 | 1.00 |  |  | 3.250 | 0.0 (0.0) | 0.0 |"
    assert rows[3] == "| vllm-bf16-draft | 10.0 | 2.00 | 2.00 | 1 of 1 |  | 3.0 (1.0) | 9.0 |"
    assert "- llama.cpp-Q8_0: it needs --gguf" in out and "Versions: vllm 1.0." in out
    assert "2026-01-02 03:04 to 03:04 UTC, revision r" in out


def test_engines_are_chosen_by_name() -> None:
    assert [one.name for one in choose(["llama.cpp-*"])] == [
        ANCHOR,
        *[n for n in ENGINES if n[:5] == "llama"],
    ]
    assert [one.name for one in choose(None)] == list(ENGINES)
    with pytest.raises(UserError, match="no engine is called lama; there are clover-bf16, "):
        choose(["lama"])
    assert all(one.plain in ENGINES for one in ENGINES.values())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    engine = ENGINES["openvino-int4-assisted"]
    assert engine.why_not(settings(tmp_path), tmp_path) == "it needs --assistant"
    reason = engine.why_not(settings(tmp_path, assistant="small"), tmp_path)
    assert reason == ".venv-openvino is missing; set it up by: make peers"
    assert ANCHOR_FAKE.why_not(settings(tmp_path), tmp_path) is None


def test_one_command_sets_up_each_environment() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"^PEERS := (.*)$", text, flags=re.MULTILINE)
    assert listed is not None
    assert set(listed[1].split()) == {one.environment for one in ENGINES.values() if one.environment}
    for environment in listed[1].split():
        rule = re.search(rf"^{environment}/\.installed:(.*)$", text, flags=re.MULTILINE)
        assert rule is not None
        files = [ROOT / name for name in rule[1].split()]
        assert any(file.parent.name == "requirements" for file in files) and all(
            file.is_file() for file in files
        )
    for peer, package in {"llama": "llama-cpp-python", "openvino": "openvino-genai"}.items():
        assert f"\n{package}==" in (ROOT / f"requirements/{peer}.txt").read_text(encoding="utf-8")


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import sys, tests.lab.test_peers as t, benchmarks.peers.__main__ as m\n"
        "from pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "m.choose = lambda names: [t.ANCHOR_FAKE, t.fake()]\n"
        "m.make_plan = lambda options: t.plan(folder)\n"
        "ask = t.workers.Worker.ask\n"
        "def slow(self, **question):\n"
        "    print(self._process.pid, flush=True)\n"
        "    t.time.sleep(60)\n"
        "t.workers.Worker.ask = slow\n"
        "m.main(['run', 'x', '--target', 'x', '--output', str(folder / 'out')])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    number = int(process.stdout.readline())
    assert Path(f"/proc/{number}").exists()
    process.terminate()
    assert process.wait(60) == 143
    assert not Path(f"/proc/{number}").exists()
