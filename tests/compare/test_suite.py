from __future__ import annotations

from pathlib import Path

import pytest

from clover.compare.suite import SUITES, Budget, Suite, System, Task, read_suite, with_own
from clover.errors import UserError
from clover.losses import LossConfig

GOOD = """
name = "mine"
systems = [{ system = "clover2" }]
tasks = [{ name = "code", kind = "prompts" }]
"""


def read(tmp_path: Path, text: str) -> Suite:
    file = tmp_path / "suite.toml"
    file.write_text(text)
    return read_suite(str(file))


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD)
    assert suite == Suite("mine", (System("clover2"),), (Task("code", kind="prompts"),))
    assert suite.systems[0].name == "clover2"
    assert suite.training.budgets == (Budget(steps=200),)


def test_whole_numbers_stand_for_fractions(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD + "[measuring]\ntemperatures = [0, 1]\n")
    assert suite.measuring.temperatures == (0.0, 1.0)
    assert all(type(value) is float for value in suite.measuring.temperatures)


def test_files_are_beside_the_suite(tmp_path: Path) -> None:
    text = GOOD.replace('kind = "prompts"', 'file = "p.txt"') + '[text]\nfiles = ["t.jsonl"]\n'
    suite = read(tmp_path, text)
    assert suite.tasks[0].file == str(tmp_path / "p.txt")
    assert suite.text.files == (str(tmp_path / "t.jsonl"),)


def test_names_of_losses(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD + "[losses.mine]\nlabel_weight = 2\n")
    paper = LossConfig(decay=0.5)
    assert suite.loss("paper", paper) is paper
    assert suite.loss("distillation", paper) == LossConfig()
    assert suite.loss("mine", paper) == LossConfig(label_weight=2.0)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("speed = 3\n", r"unknown key 'speed'; known are name, systems"),
        ("[text]\nminuets = 3\n", r"text: unknown key 'minuets'"),
        ("[text]\ntexts = 0\n", r"text: texts is 0; it must be at least 1"),
        ('[text]\ntexts = "many"\n', r"texts must be a whole number, not 'many'"),
        ("[text]\ntexts = true\n", r"texts must be a whole number, not True"),
        ("[text]\nwrite = false\n", r"true where there are no files"),
        ("[training]\nlosses = []\n", r"losses is \[\]; it must be a list with at least one entry"),
        ("[training]\nlosses = ['own']\n", r"a loss is 'own'; it must be one of paper, distillation"),
        ("[training]\nseeds = [1, 1]\n", r"there once only"),
        ("[training]\nlearning_rates = [0.0]\n", r"more than 0"),
        ("[training]\nlearning_rates = [inf]\n", r"more than 0"),
        ("[training]\nbudgets = [{ steps = 2, minutes = 1 }]\n", r"either steps or minutes"),
        ("[training]\nbudgets = [{}]\n", r"either steps or minutes"),
        ("[training]\nbudgets = 3\n", r"budgets must be a list"),
        ("[measuring]\ntemperatures = [-1]\n", r"numbers of at least 0"),
        ("[measuring]\nbatch_sizes = [0]\n", r"at least 1"),
        ("[losses.paper]\n", r"another name"),
        ("[losses.mine]\nweight = 1\n", r"unknown key 'weight'"),
        ("[measuring\n", r"not valid TOML"),
        ("target = 'other'\n", r"needs files"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, added: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, GOOD + added)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', "", r"lacks the key 'name'"),
        ('"mine"', '"a/b"', r"letters, digits"),
        ('"clover2"', '"clover9"', r"system is 'clover9'; it must be one of .*clover2"),
        ('system = "clover2"', 'system = "clover2", name = "plain"', r"another name"),
        ('system = "clover2"', 'system = "clover2", against = "x"', r"one of clover2"),
        (', kind = "prompts"', "", r"either a file or a kind"),
        ('kind = "prompts"', 'kind = "poems"', r"one of prompts, comments"),
        ('kind = "prompts"', 'kind = "prompts", group = "x"', r"left out without a file"),
    ],
)
def test_errors_in_systems_and_tasks(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError, match=message):
        read(tmp_path, GOOD.replace(old, new))


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the suite .*nothing: .*quick"):
        read_suite(str(tmp_path / "nothing"))


@pytest.mark.parametrize("file", sorted(SUITES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_package_has_its_suites_by_name(file: Path) -> None:
    assert read_suite(file.stem).name == file.stem


def test_the_repository_shows_the_suites() -> None:
    shown = Path(__file__).parents[2] / "suites"
    assert sorted(f.name for f in shown.glob("*.toml")) == sorted(f.name for f in SUITES.glob("*.toml"))
    named = {"paper-clover1", "paper-clover2", "tree-size", "learning-rate", "ablation", "systems", "quick"}
    assert named <= {file.stem for file in SUITES.glob("*.toml")}


def test_the_digest_stands_for_every_value(tmp_path: Path) -> None:
    one, same = read(tmp_path, GOOD), read(tmp_path, "# a remark\n" + GOOD)
    other = read(tmp_path, GOOD + "[measuring]\nrounds = 4\n")
    assert one.digest == same.digest != other.digest


def test_a_suite_on_the_users_own_model(tmp_path: Path) -> None:
    suite = read(tmp_path, GOOD)
    own = with_own(suite, "my-model", ["chats.jsonl"], ["mt=questions.jsonl:mt_bench", "lines=lines.txt"])
    assert (own.target, own.text.files) == ("my-model", ("chats.jsonl",))
    assert own.tasks == (
        Task("mt", file="questions.jsonl", group="mt_bench"),
        Task("lines", file="lines.txt"),
    )
    assert (own.systems, own.training, own.measuring) == (suite.systems, suite.training, suite.measuring)
    assert with_own(suite, None, [], []) == suite
    with pytest.raises(UserError, match=r"'questions.jsonl' must be NAME=FILE"):
        with_own(suite, None, [], ["questions.jsonl"])
    with pytest.raises(UserError, match=r"needs files \(or the command --data\)"):
        with_own(suite, "my-model", [], [])


def test_a_directory_is_not_taken_for_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quick").mkdir()
    assert read_suite("quick").name == "quick"
