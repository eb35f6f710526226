from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clover.drafts import LossConfig
from clover.drafts.medusa import MedusaDraft
from clover.errors import UserError
from experiments.compare.options import CompareOptions
from experiments.compare.suite import SUITES, Suite, SuiteTask, read_suite

GOOD = """
name = "mine"
systems = [{ system = "medusa" }]
tasks = [{ name = "code" }]
"""


def read(tmp_path: Path, text: str) -> Suite:
    file = tmp_path / "suite.toml"
    file.write_text(text)
    return read_suite(CompareOptions(suite=str(file)))


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD + "[measuring]\ntemperatures = [0, 1]\n")
    assert (suite.name, suite.target, suite.systems[0].label) == ("mine", "embedded", "medusa")
    assert suite.training.steps == (200,)
    assert suite.measuring.temperatures == (0.0, 1.0)


def test_files_are_beside_the_suite(tmp_path: Path) -> None:
    text = GOOD.replace('"code"', '"code", file = "p.txt"') + '[text]\nfiles = ["t.jsonl"]\n'
    suite = read(tmp_path, text)
    assert suite.tasks[0].file == str(tmp_path / "p.txt")
    assert suite.text.files == (str(tmp_path / "t.jsonl"),)


def test_the_options_come_in_place_of_what_the_suite_measures() -> None:
    given = CompareOptions(suite="smollm2-clover2", max_prompts=3, max_new_tokens=48, temperatures=(0.0,))
    measuring = read_suite(given).measuring
    assert (measuring.prompts, measuring.max_new_tokens, measuring.temperatures) == (3, 48, (0.0,))
    assert read_suite(CompareOptions(suite="smollm2-clover2")).measuring.temperatures == (0.0, 1.0)


def test_names_of_losses(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD + "[losses.mine]\nlabel_weight = 2\n")
    assert suite.loss("paper", MedusaDraft) is MedusaDraft.training_defaults.paper_loss
    assert suite.loss("default", MedusaDraft) is MedusaDraft.training_defaults.loss
    assert suite.loss("distillation", MedusaDraft) == LossConfig()
    assert suite.loss("mine", MedusaDraft).label_weight == 2.0


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("speed = 3\n", "speed is unknown"),
        ("[text]\nminuets = 3\n", "text.minuets is unknown"),
        ("[text]\ntexts = 0\n", "text.texts is 0"),
        ('[text]\ntexts = "many"\n', "text.texts is 'many'"),
        (f"[text]\ntexts = {10**20}\n", "text.texts is 100000000000000000000"),
        ("[text]\ntexts = true\n", "text.texts is True"),
        ("[training]\nlosses = []\n", r"training.losses must not be empty"),
        (
            "[training]\nlosses = ['own']\n",
            "the loss of 'medusa' is 'own'; it must be one of default, paper, distillation",
        ),
        (f"[training]\nseeds = [{2**70}]\n", "training.seeds.0 is 1180591620717411303424"),
        ("[training]\nseeds = [1, 1]\n", "training.seeds: each entry must be there once only"),
        ("[training]\nlearning_rates = [0.0]\n", "training.learning_rates.0 is 0.0"),
        ("[training]\nlearning_rates = [inf]\n", "cannot be used"),
        ("[training]\nsteps = 3\n", "training.steps is 3"),
        ("[training]\ndtype = 'fp8'\n", "training.dtype is 'fp8'"),
        ("[measuring]\ntemperatures = [-1]\n", "measuring.temperatures.0 is -1"),
        ("[training]\nlearning_rates = [1e300]\n", "learning_rates.0 is 1e.300; it must be less"),
        ("[measuring]\ntemperatures = [1e-7]\n", "measuring.temperatures.0: .*must be 0 .* or at least 1e-5"),
        ("[measuring]\nbatch_sizes = [0]\n", "measuring.batch_sizes.0 is 0"),
        ("[losses.mine]\nweight = 1\n", "losses.mine.weight is unknown"),
        ("[losses.mine]\ndecay = -1\n", "losses.mine.decay is -1"),
        (
            "[losses.mine]\ndistillation_weight = 0\n",
            "losses.mine: distillation_weight, .* are 0; one must be",
        ),
        ("[measuring\n", "not valid TOML"),
        ("x = " + "[" * 100_000 + "\n", "not valid TOML: maximum recursion depth"),
        ("\n[" + "x." * 10_000 + "y]\n", "nested too deeply"),
        ("target = 'other'\n", r"\[text\] needs files \(or the command --data\)"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, added: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"suite.toml.*{message}") as caught:
        read(tmp_path, GOOD + added)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', "", "name is missing"),
        ('"medusa"', '"clover9"', r"system of 'clover9' is 'clover9'; it must be one of .*clover2"),
        (
            'system = "medusa"',
            'system = "medusa", against = "x"',
            "against of 'medusa' is 'x'; it must be one of medusa",
        ),
        ('{ system = "medusa" }', "3", "systems.0 is 3"),
        ('"code"', '"code", kind = "poems"', "tasks.0.kind is unknown"),
        ('"code"', '"code", group = "x"', "tasks.0: .* has a group, which only a file has"),
    ],
)
def test_errors_in_systems_and_tasks(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError, match=message):
        read(tmp_path, GOOD.replace(old, new))


def test_a_suite_that_is_not_there_or_no_suite(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nothing.*quick"):
        read_suite(CompareOptions(suite=str(tmp_path / "nothing")))
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"huge is larger than 16 MiB"):
        read_suite(CompareOptions(suite=str(tmp_path / "huge")))


@pytest.mark.parametrize("file", sorted(SUITES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_package_has_its_suites_by_name(file: Path) -> None:
    assert read_suite(CompareOptions(suite=file.stem)).name == file.stem
    shown = Path(__file__).parents[3] / "suites" / file.name
    assert shown.is_file()


def test_the_suite_of_shipped_drafts_finds_them() -> None:
    for system in read_suite(CompareOptions(suite="smollm2-shipped")).systems:
        assert system.drafts and all(Path(place, "config.json").is_file() for place in system.drafts)


def test_a_suite_on_the_users_own_model(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(GOOD)
    chosen = CompareOptions(suite=str(file), target="my-model", max_prompts=3)
    tasks = ("mt=questions.jsonl:mt_bench", "lines=lines.txt")
    own = read_suite(replace(chosen, data=("chats.jsonl",), tasks=tasks))
    assert (own.measuring.prompts, own.measuring.max_new_tokens) == (3, 128)
    assert (own.target, own.text.files) == ("my-model", ("chats.jsonl",))
    assert own.tasks == (
        SuiteTask(name="mt", file="questions.jsonl", group="mt_bench"),
        SuiteTask(name="lines", file="lines.txt"),
    )
    with pytest.raises(UserError, match=r"'questions.jsonl' must be NAME=FILE"):
        read_suite(CompareOptions(suite=str(file), tasks=("questions.jsonl",)))
    with pytest.raises(UserError, match=r"needs files \(or the command --data\)"):
        read_suite(chosen)


def test_a_directory_is_not_taken_for_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quick").mkdir()
    assert read_suite(CompareOptions(suite="quick")).name == "quick"
