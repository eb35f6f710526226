import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clover.drafting.tuning import (
    Choice,
    Tuning,
    TuningFile,
    VerifyCost,
    architecture_name,
    read_tuning,
    seconds_at,
    write_entry,
)
from clover.errors import UserError

HERE = "a machine, 2 threads"
TUNING = Tuning(
    device="cpu",
    dtype="float32",
    machine=HERE,
    threads=2,
    date="2026-11-21",
    versions={"clover": "0.1.0"},
    weights=None,
    exact=False,
    target="llama-16-256-4096",
    verify=(VerifyCost(1, 9, 0.014), VerifyCost(1, 1, 0.011), VerifyCost(8, 1, 0.07)),
    choices=(
        Choice(1, "paths:0,1,00", 3.5, 0.02, 150.0),
        Choice(1, "plain", 1.0, 0.011, 90.0),
        Choice(8, "plain", 1.0, 0.02, 400.0),
        Choice(8, "chain:9:0.1", 3.0, 0.06, 390.0),
    ),
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clover.drafting.tuning.machine", lambda _: HERE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.json"
    write_entry(path, TUNING)
    return path


def test_what_is_written_is_read(file: Path):
    assert read_tuning(file) == TuningFile((TUNING,))
    slower = replace(TUNING, threads=1)
    write_entry(file, slower)
    assert read_tuning(file).entries == (slower,)


def target_that_runs(tuning: Tuning, **facts: object) -> Any:
    """A target as it was when a tuning was measured, but for some facts."""
    kind, layers, width, tokens = tuning.target.split("-")
    sizes = {"num_hidden_layers": int(layers), "hidden_size": int(width), "vocab_size": int(tokens)}
    known = {"device": SimpleNamespace(type=tuning.device), "dtype_name": tuning.dtype}
    known |= {"weights": tuning.weights, "exact": tuning.exact}
    return SimpleNamespace(**known | {"config": SimpleNamespace(model_type=kind, **sizes)} | facts)


def test_an_entry_replaces_that_of_a_target_that_ran_so_alone(file: Path, recwarn: pytest.WarningsRecorder):
    half, newer = replace(TUNING, dtype="bfloat16"), replace(TUNING, date="2026-11-22")
    int8, deeper = replace(half, weights="int8", exact=True), replace(TUNING, target="llama-32-256-4096")
    every = [half, int8, deeper, newer]
    for one in every:
        write_entry(file, one)
    found = read_tuning(file)
    assert set(found.entries) == {*every}
    assert [found.find(target_that_runs(one)) for one in every] == every
    assert not recwarn.list


@pytest.mark.parametrize(
    ("facts", "made", "here"),
    [
        (
            {"weights": "int8", "exact": True},
            "cpu in float32, plain weights,",
            "cpu in float32, int8 weights, exact;",
        ),
        ({"exact": True}, "cpu in float32, plain weights,", "cpu in float32, plain weights, exact;"),
        ({"dtype_name": "bfloat16"}, "cpu in float32,", "cpu in bfloat16,"),
        ({"device": SimpleNamespace(type="cuda")}, "on cpu in", "on cuda in"),
        ({"config": SimpleNamespace(model_type="gpt2")}, "llama-16-256-4096 on", "gpt2-None-None-None on"),
    ],
)
def test_a_tuning_for_another_target_is_not_used_and_that_is_said(
    file: Path, facts: dict[str, Any], made: str, here: str
):
    with pytest.warns(
        UserWarning, match=f"tuned for .*{made}.* not for .*{here}.* anew with `clover tune`"
    ) as said:
        assert read_tuning(file).find(target_that_runs(TUNING, **facts)) is None
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert TuningFile().find(target_that_runs(TUNING, **facts)) is None


def test_a_tuning_of_another_machine_is_used_and_that_is_said(file: Path, recwarn: pytest.WarningsRecorder):
    write_entry(file, elsewhere := replace(TUNING, machine="a faster machine"))
    assert read_tuning(file).find(target_that_runs(TUNING), shipped=True) == elsewhere and not recwarn.list
    assert read_tuning(file).find(target_that_runs(TUNING)) == elsewhere
    (said,) = recwarn.list
    assert str(said.message).startswith(
        f"the draft was tuned on a faster machine, and this is {HERE}: its times"
    )


def test_choices_are_those_of_the_nearest_batch_size():
    assert TUNING.choices_for(1) == TUNING.choices_for(2) == TUNING.choices[:2]
    assert TUNING.choices_for(3) == TUNING.choices_for(64) == TUNING.choices[2:]


def test_a_target_is_told_by_its_sizes():
    config = SimpleNamespace(model_type="llama", num_hidden_layers=16, hidden_size=256, vocab_size=4096)
    assert architecture_name(config) == "llama-16-256-4096"
    assert architecture_name(SimpleNamespace(**vars(config) | {"hidden_size": 8})) != "llama-16-256-4096"


def test_seconds_are_on_lines_through_those_of_the_nearest_batch_size():
    costs = [VerifyCost(1, 6, 6.0), VerifyCost(1, 1, 4.0), VerifyCost(1, 2, 2.0), VerifyCost(8, 3, 7.0)]
    assert [seconds_at(costs, 1, nodes) for nodes in (1, 2, 4, 6, 8)] == [4.0, 2.0, 4.0, 6.0, 6.0]
    assert seconds_at(costs, 2, 2) == 2.0 and seconds_at(costs, 4, 100) == 7.0


# -- files that are no tunings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("entries",), {}),
        (("entries",), [3]),
        (("entries", 0, "device"), 3),
        (("entries", 0, "device"), "cpu\x1b[2J"),
        (("entries", 0, "threads"), True),
        (("entries", 0, "threads"), 0),
        (("entries", 0, "threads"), 2.0),
        (("entries", 0, "versions"), {"clover": 1}),
        (("entries", 0, "verify"), {"0": 1}),
        (("entries", 0, "verify", 0, "nodes"), -1),
        (("entries", 0, "verify", 0, "nodes"), 10**12),
        (("entries", 0, "verify", 0, "seconds"), float("nan")),
        (("entries", 0, "verify", 0, "seconds"), 0.0),
        (("entries", 0, "verify", 0), [1, 2, 3]),
        (("entries", 0, "choices", 0, "step_seconds"), float("inf")),
        (("entries", 0, "choices", 0, "tree"), "/etc/passwd"),
        (("entries", 0, "choices"), []),
        (("entries", 0, "choices", 0, "tree"), "secret.json"),
        (("entries", 0, "choices", 0, "tree"), "drawn:secret.json"),
        (("entries", 0, "choices", 0, "tree"), "eagle2:1:1:1:secret.json"),
        (("entries", 0, "choices", 0, "tree"), "paths:0,0"),
        (("entries", 0, "choices", 0, "tree"), "paths:" + ",".join(str(i) for i in range(5000))),
        (("entries", 0, "choices", 0, "tree"), None),
        (("entries", 0, "choices", 0, "tau"), "3"),
        (("entries", 0, "choices", 0, "tokens_per_second"), -5.0),
    ],
)
def test_hostile_values_are_refused_in_one_line(file: Path, place: tuple, value: object, monkeypatch):
    monkeypatch.chdir(file.parent)
    (file.parent / "secret.json").write_text("[[0]]")
    (file.parent / "eagle2:1:1:1:secret.json").write_text("[[0]]")
    obj = json.loads(file.read_text())
    part = obj
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    file.write_text(json.dumps(obj))
    with pytest.raises(UserError, match=r"tuning\.json") as caught:
        read_tuning(file)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", vars(TUNING))
def test_nothing_may_be_missing(file: Path, name: str):
    obj = json.loads(file.read_text())
    del obj["entries"][0][name]
    file.write_text(json.dumps(obj))
    with pytest.raises(UserError, match=f"{name} is missing"):
        read_tuning(file)


@pytest.mark.parametrize("name", ["clover-tuning-2", None, 3])
def test_a_file_of_another_format_says_what_to_run(file: Path, name: object):
    file.write_text(json.dumps({"format": name, "entries": []}))
    with pytest.raises(UserError, match="clover tune"):
        read_tuning(file)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": []}', "[" * 100_000, "\0", '{"a": ' * 50_000])
def test_other_files_are_refused_and_not_written_over(tmp_path: Path, text: str):
    file = tmp_path / "tuning.json"
    file.write_text(text)
    with pytest.raises(UserError):
        read_tuning(file)
    with pytest.raises(UserError):
        write_entry(file, TUNING)
    assert file.read_text() == text


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot read .*tuning\.json"):
        read_tuning(tmp_path / "tuning.json")
