import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from clover import assets
from clover.api import load
from clover.drafts import RecallDraft
from clover.drafts.copies import LONGEST
from clover.drafts.medusa import MedusaDraft
from clover.engine import Engine
from clover.errors import UserError
from clover.measure.evaluate import depths_note, run_evaluate
from clover.measure.kinds import TOKEN_KINDS
from clover.measure.options import EvaluateOptions
from clover.measure.report.output import Report
from clover.measure.report.table import Table
from clover.measure.session import Session
from clover.metrics import Acceptance
from clover.options import ModelOptions
from clover.target import TargetModel
from tests.families import tiny_model

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["the cat sat", "again"]},
    {"question_id": 161, "category": "translation", "turns": ["the mat and the answer"]},
    {"question_id": 162, "category": "translation", "turns": ["hello world " * 60]},  # too long
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), encoding="utf-8")
    return path


def evaluate(pair: tuple[Path, Path], **options: object) -> Report:
    chosen = {"target": str(pair[0]), "draft": str(pair[1]), "max_new_tokens": 8, **options}
    quiet = Console(file=io.StringIO(), width=100)
    return run_evaluate(EvaluateOptions(**chosen), quiet, quiet)  # type: ignore[arg-type]


def data(report: Report) -> dict[str, Any]:
    assert isinstance(report.data, dict)
    return report.data


def test_what_is_measured_is_what_the_python_interface_gives(
    tiny_pair: tuple[Path, Path], questions: Path
) -> None:
    report = evaluate(tiny_pair, files=(str(questions),), trees=("chain:3", "clover2"), seed=3)
    assert dict(report.facts)["prompts"].startswith("2 prompts, 8 new tokens each (1 more do not fit")
    settings = data(report)["settings"]
    names = [(setting["tree"], setting["temperature"], setting["budget"]) for setting in settings]
    assert names == [("chain:3", 0.0, 3), ("chain:3", 1.0, 3), ("clover2", 0.0, 25), ("clover2", 1.0, 25)]
    turns = [[{"role": "user", "content": QUESTIONS[i]["turns"][0]}] for i in range(2)]  # type: ignore[index]
    for setting in settings:
        model = load(*tiny_pair, tree=setting["tree"])
        results = model.generate(turns, max_new_tokens=8, temperature=setting["temperature"], seed=3)
        expected = sum((one.acceptance for one in results), Acceptance()).to_dict()
        assert {name: setting[name] for name in expected} == expected
        assert [group["group"] for group in setting["groups"]] == ["mt_bench", "translation"]


def test_a_draft_that_may_not_copy_is_measured_as_one_that_cannot(
    tiny_pair: tuple[Path, Path], questions: Path, tmp_path: Path
) -> None:
    found = []
    for shares, no_copies in (([0.99] * LONGEST, True), (None, False), ([0.99] * LONGEST, False)):
        draft = RecallDraft.from_pretrained(tiny_pair[1])
        draft.config.copy_shares = shares
        draft.save_pretrained(tmp_path / "draft")
        pair = tiny_pair[0], tmp_path / "draft"
        report = evaluate(pair, files=(str(questions),), no_copies=no_copies, max_new_tokens=48)
        assert dict(report.facts)["system"].endswith("copies nothing") == no_copies
        found.append(data(report)["settings"])
    assert found[0] == found[1] != found[2]


def test_a_drawn_tree_is_of_exact_weights() -> None:
    """As everywhere else: int8 weights would move the probabilities that its text depends on."""
    pair = Path(assets.TARGET), Path(assets.DRAFT)  # the tiny pair is too small for int8 weights
    session = Session.load(ModelOptions(), max_new_tokens=4, max_prompts=1)
    expected, found = load(*pair, tree="drawn:chain:3").engine, session.engine("drawn:chain:3")
    assert torch.equal(first_logits(found), first_logits(expected))


@torch.inference_mode()
def first_logits(engine: Engine) -> torch.Tensor:
    """What its draft says after one position."""
    assert engine.draft is not None
    hidden = torch.linspace(-1.0, 1.0, engine.target.hidden_width(engine.hidden_state))
    return engine.draft.new_session(1, 4).commit(hidden.reshape(1, 1, -1), torch.tensor([[3]]), [1])


@pytest.mark.parametrize("temperatures", [(0.0,), (1.0,)])
def test_heads_are_measured_on_greedy_text(
    tiny_pair: tuple[Path, Path], questions: Path, temperatures: tuple[float, ...]
) -> None:
    report = evaluate(tiny_pair, files=(str(questions),), temperatures=temperatures, details=True)
    assert [setting["temperature"] for setting in data(report)["settings"]] == list(temperatures)
    written = load(*tiny_pair).generate(
        [[{"role": "user", "content": row["turns"][0]}] for row in QUESTIONS[:2]],  # type: ignore[index]
        max_new_tokens=8,
    )
    assert data(report)["heads"]["positions"][0] == sum(len(one.tokens) for one in written)


def test_files_and_tables(tiny_pair: tuple[Path, Path], questions: Path, tmp_path: Path) -> None:
    files = {"json": tmp_path / "new" / "found.json"}
    chosen = {"trees": ("chain:2",), "temperatures": (0.0,), "details": True}
    report = evaluate(tiny_pair, files=(str(questions),), **chosen, **files)
    found = json.loads(files["json"].read_text(encoding="utf-8"))
    assert found["settings"] == json.loads(json.dumps(data(report)["settings"]))
    assert found["provenance"]["command"].startswith("clover evaluate ")
    assert found["system"] == "recall"
    tables: dict[str, Table] = {table.title: table for table in report.tables}
    tau = found["settings"][0]["tau"], found["settings"][0]["tau_error"]
    (everything, *groups) = tables["Acceptance"].rows
    assert everything[:5] == ("chain:2", "0", "all", "2", str(found["settings"][0]["emitted"]))
    assert everything[5] == f"{tau[0]:.2f} ± {tau[1]:.2f}"
    assert [row[2] for row in groups] == ["mt_bench", "translation"]
    forced = next(table for title, table in tables.items() if "forced" in title)
    share, error = found["heads"]["forced"][0][0], found["heads"]["forced_errors"][0][0]
    assert forced.rows[0][2] == f"{100 * share:.1f} ± {100 * error:.1f}"
    weak = tables["Where the draft is weak"]
    assert weak.columns == ("new tokens", "chain:2, T 0") and weak.rows[0][0] in TOKEN_KINDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 1, "details": True}, "depths are measured on 2 tokens"),
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"json": Path("/")}, "is a directory"),
        ({"trees": ("chain:17",)}, "the tree is 17 deep"),
        ({"trees": ("nonsense",)}, "nonsense"),
        ({"files": ("missing.jsonl",)}, "cannot read missing.jsonl"),
        ({"draft": None}, "no draft"),
        ({"temperatures": (0.0, -1.0)}, "temperature"),
    ],
)
def test_what_cannot_work_is_said(
    tiny_pair: tuple[Path, Path], questions: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(tiny_pair, **{"files": (str(questions),), **options})


def test_the_own_tree_is_named(tiny_pair: tuple[Path, Path], questions: Path) -> None:
    report = evaluate(tiny_pair, files=(str(questions),), temperatures=(0.0,), max_new_tokens=4)
    assert [table.title for table in report.tables] == ["Acceptance", "Where the draft is weak"]
    assert report.tables[0].rows[0][0] == "own tree, clover2"
    tau = report.tables[0].rows[0][-1]
    assert report.title == f"τ {tau} with own tree, clover2, greedy" and data(report)["heads"] is None
    assert data(report)["settings"][0]["tree"] == "own"


def test_tau_by_position_counts_every_step_once(tiny_pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat sat\n" * 3)
    report = evaluate(tiny_pair, files=(str(prompts),), temperatures=(0.0,), by_position=True)
    (setting,) = data(report)["settings"]
    assert [table.title for table in report.tables][:2] == ["Acceptance", "By position in the text"]
    (place,) = setting["places"]
    assert (place["start"], place["end"], place["texts"]) == (0, 256, 3)
    assert (place["steps"], place["tokens"]) == (setting["steps"], setting["emitted"])


def test_when_the_time_is_over_what_there_is_counts(tiny_pair: tuple[Path, Path], questions: Path) -> None:
    options = {"files": (str(questions),), "trees": ("chain:2",), "seed": 3}
    whole, part = evaluate(tiny_pair, **options), evaluate(tiny_pair, **options, max_minutes=0.0)
    assert "ended" not in dict(whole.facts) and "ended" in dict(part.facts)
    assert dict(part.facts)["ended"] == "after 1 of 2 prompts, by --max-minutes 0"
    for one, every in zip(data(part)["settings"], data(whole)["settings"], strict=True):
        assert one["per_prompt"] == every["per_prompt"][:1]  # the same seed, whatever else is measured


@pytest.mark.parametrize(
    ("system", "note"),
    [
        (MedusaDraft, "The draft was trained for 5 depths."),
        (
            RecallDraft,
            "The draft was trained for 5 depths; it repeats its last step as deep as a tree goes.",
        ),
    ],
)
def test_more_depths_than_heads_are_explained(system: Any, note: str) -> None:
    draft = system.from_target(TargetModel(tiny_model("llama")), num_heads=5)
    assert depths_note(draft) == note


def test_texts_are_shortened_where_the_first_prompt_would_not_end_in_time(
    tiny_pair: tuple[Path, Path], questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1.1 s per token of all settings, in one minute; a length that was asked for is kept."""
    monkeypatch.setattr("clover.measure.evaluate.warm_up", lambda *_: 0.55)
    monkeypatch.setattr("clover.measure.evaluate._NEW_TOKENS", 90)
    options = {"files": (str(questions),), "max_minutes": 1.0, "trees": ("chain:3",)}
    report = evaluate(tiny_pair, **options, max_new_tokens=None)
    tokens = int(dict(report.facts)["prompts"].split(", ")[1].split()[0])
    assert 40 < tokens < 55 and "--max-new-tokens lifts that" in dict(report.facts)["shortened"]
    report = evaluate(tiny_pair, **options, max_new_tokens=60)
    assert "60 new tokens each" in dict(report.facts)["prompts"] and "shortened" not in dict(report.facts)
