"""The number of drafted tokens for vLLM, from given times of its steps."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from clover.drafts import Clover1Draft, RecallDraft
from clover.errors import UserError
from clover.measure.options import TuneOptions
from clover.measure.tune_vllm import (
    StepCosts,
    VLLMStep,
    chain_taus,
    draft_counts,
    run_tune_vllm,
    speculative_config,
)
from clover.target import TargetModel
from tests.tiny import save_tiny_pair

STEPS = [{"batch_size": 1, "drafted": k, "seconds": 0.01 + k / 1e5} for k in (0, 3)]
TAUS = {0: 1.0, 1: 1.6, 2: 2.0, 3: 2.2, 4: 2.3}


def costs(*rows: tuple[int, int, float]) -> StepCosts:
    return StepCosts("0.32.0", tuple(VLLMStep(*row) for row in rows))


def test_tau_of_chains_is_counted_step_by_step():
    # right, right, wrong, then right to the end: 2 + 1 tokens, then 2
    text = ((0, 0), (0,), (), (0, 0), (0,))
    assert chain_taus([text], 2) == {0: 1.0, 1: 5 / 3, 2: 5 / 2}


def test_a_step_between_two_measured_ones_is_on_the_line():
    ((*some,),) = draft_counts(costs((1, 0, 0.010), (1, 4, 0.014)), TAUS)
    by_number = {one.step.nodes - 1: one for one in some}
    assert [by_number[k].step.seconds for k in range(5)] == pytest.approx([0.010, 0.011, 0.012, 0.013, 0.014])
    assert by_number[2].speedup == pytest.approx(2.0 * 10 / 12)
    assert by_number[2].tokens_per_second == pytest.approx(2.0 / 0.012)
    assert some[0] is by_number[max(by_number, key=lambda k: TAUS[k] / by_number[k].step.seconds)]


def test_where_steps_grow_dear_fewer_tokens_are_drafted():
    cheap, dear = (1, 0, 0.010), (64, 0, 0.010)
    sizes = draft_counts(costs(cheap, (1, 4, 0.011), dear, (64, 4, 0.050)), TAUS)
    assert [some[0].step.tree for some in sizes] == ["chain:4", "plain"]
    config = speculative_config([some[0].step for some in sizes], "dir")
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 63, 4], [64, 1024, 0]]


def test_one_number_for_all_sizes_needs_no_schedule_and_none_no_draft():
    (some,) = draft_counts(costs((1, 0, 0.010), (1, 4, 0.011)), TAUS)
    assert speculative_config([some[0].step], "dir") == {
        "method": "eagle",
        "model": "dir",
        "num_speculative_tokens": 4,
    }
    (some,) = draft_counts(costs((1, 0, 0.010), (1, 4, 0.110)), TAUS)
    assert speculative_config([some[0].step], "dir") == {}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 1, 0.01), (1, 2, 0.02)], "batch size 1 must"),
        ([(2, 0, 0.01), (2, 1, 0.01), (1, 0, 0.01)], "batch size 1 must"),
        ([(1, 0, 0.0), (1, 1, 0.01)], "seconds is 0.0"),
        ([(0, 0, 0.01), (0, 1, 0.01)], "batch_size is 0"),
        ([(1, 0, 0.01), (1, -1, 0.01)], "drafted is -1"),
        ([], "steps must not be empty"),
    ],
)
def test_costs_that_say_too_little_are_refused(rows, message):
    with pytest.raises(UserError, match=message):
        _ = costs(*rows).by_size


def test_no_number_of_a_file_is_counted_up_to():
    ((*some,),) = draft_counts(costs((1, 0, 0.01), (1, 10**12, 0.02)), TAUS)
    assert sorted(one.step.nodes - 1 for one in some) == sorted(TAUS)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TuneOptions:
    folder = tmp_path_factory.mktemp("vllm")
    target, draft = save_tiny_pair(folder)
    (folder / "prompts.txt").write_text("the quick fox\njumps over\n")
    (folder / "costs.json").write_text(json.dumps({"vllm": "0.32.0", "steps": STEPS}))
    return TuneOptions(
        files=(str(folder / "prompts.txt"),), target=str(target), draft=str(draft), max_new_tokens=8, for_="vllm",
        costs=folder / "costs.json", output=folder / "out.json", json=folder / "all.json",
    )  # fmt: skip


def test_the_whole_of_it(options: TuneOptions):
    shown = io.StringIO()
    (best,) = run_tune_vllm(options, Console(file=shown, width=120), Console(file=io.StringIO()))
    assert best.batch_size == 1
    found = json.loads(Path(options.json).read_text())
    assert sorted(one["nodes"] for one in found["trees"]) == [1, 2, 3, 4] and found["vLLM"] == "0.32.0"
    written = json.loads(Path(options.output).read_text())
    assert written.get("num_speculative_tokens", 0) == best.nodes - 1
    assert "--for vllm" in found["provenance"]["command"]


def test_the_configuration_is_written_though_nobody_reads_the_report(options: TuneOptions, tmp_path: Path):
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(SystemExit):  # as rich ends a process whose reader has gone
        told = replace(options, output=tmp_path / "config.json")
        run_tune_vllm(told, Console(file=Closed()), Console(file=io.StringIO()))
    assert (tmp_path / "config.json").exists()


def test_tau_is_that_of_a_draft_that_copies_nothing(options, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "clover.measure.tune_vllm.rank_paths",
        lambda session, *_: seen.append(session.draft.model) or [((0,),)],
    )
    target = TargetModel.load(options.target)
    RecallDraft.from_target(target, copy_shares=[0.5] * 4).save_pretrained(options.output.parent / "copying")
    quiet = Console(file=io.StringIO())
    run_tune_vllm(replace(options, draft=str(options.output.parent / "copying")), quiet, quiet)
    assert not seen[0].has_copy_weights


def test_without_vllm_and_without_a_file_it_says_what_to_do(run_clover, monkeypatch):
    monkeypatch.setattr("clover.measure.tune_vllm.find_spec", lambda name: None)
    done = run_clover("tune", "--for", "vllm")
    assert (done.code, "give its file with --costs" in done.err) == (2, True), done.err


def test_vllm_is_timed_with_the_same_draft_and_as_many_tokens_as_it_has_heads(options, tmp_path, monkeypatch):
    Clover1Draft.from_target(TargetModel.load(options.target)).save_pretrained(tmp_path / "draft")
    asked = []

    def measure(target, draft, sizes, drafted, settings):
        system = json.loads((Path(draft) / "config.json").read_text())["clover"]["model_type"]
        asked.append((target, system, sizes, drafted, settings))
        return {
            "vllm": "0.32.0",
            "steps": [{"batch_size": 2, "drafted": k, "seconds": 0.01} for k in drafted],
        }

    monkeypatch.setattr("clover.measure.tune_vllm.find_spec", lambda name: True)
    monkeypatch.setattr("clover.measure.tune_vllm.measure_costs", measure)
    told = replace(
        options,
        draft=str(tmp_path / "draft"),
        costs=None,
        batch_sizes=(2,),
        trust_remote_code=True,
        dtype="fastest",
    )
    quiet = Console(file=io.StringIO())
    run_tune_vllm(told, quiet, quiet)
    settings = {"dtype": asked[0][-1]["dtype"], "trust_remote_code": True}
    assert asked == [(options.target, "clover1", (2,), [0, 1, 3], settings)]
    assert settings["dtype"] in ("float32", "bfloat16")  # what the fastest was


@pytest.mark.parametrize("measured", [True, False])
def test_a_target_without_a_draft_does_not_get_the_embedded_ones(options, measured, monkeypatch):
    monkeypatch.setattr("clover.measure.tune_vllm.find_spec", lambda name: True)
    quiet = Console(file=io.StringIO())
    with pytest.raises(UserError, match="a target was given but no draft"):
        run_tune_vllm(replace(options, draft=None, costs=None if measured else options.costs), quiet, quiet)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", 4, "--costs", "costs.json"), "leave --batch-size out"),
        (("--device", "cpu"), "leave --device out"),
        (("--target", "FILE.gguf"), "vLLM does not read the GGUF file of"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(run_clover, arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr("clover.measure.tune_vllm.find_spec", lambda name: True)
    done = run_clover("tune", "--for", "vllm", *arguments)
    assert (done.code, done.err.count("\n"), message in done.err) == (2, 1, True), done.err


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"batch_size": "many"}], "batch_size"),
        ([], "steps must not be empty"),
        (STEPS[:1], "batch size 1 must hold 0 drafted tokens and one more"),
    ],
)
def test_a_hostile_costs_file_is_one_line_before_the_work(run_clover, tmp_path, monkeypatch, steps, message):
    monkeypatch.setattr("clover.measure.tune_vllm.load_session", None)
    (tmp_path / "costs.json").write_text(json.dumps({"vllm": "x", "steps": steps}))
    done = run_clover("tune", "--for", "vllm", "--costs", tmp_path / "costs.json")
    assert (done.code, done.err.count("\n"), message in done.err) == (2, 1, True), done.err
