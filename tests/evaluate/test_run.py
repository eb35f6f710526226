import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from clover.api import load
from clover.data import Batches, read_samples
from clover.errors import UserError
from clover.evaluate import EvaluateOptions, EvaluationReport, measure_heads, run_evaluate
from clover.metrics import Acceptance

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


def evaluate(pair: tuple[Path, Path], **options: object) -> EvaluationReport:
    chosen = {"target": str(pair[0]), "draft": str(pair[1]), "max_new_tokens": 8, **options}
    quiet = Console(file=io.StringIO(), width=100)
    return run_evaluate(EvaluateOptions(**chosen), quiet, quiet)  # type: ignore[arg-type]


def test_what_is_measured_is_what_the_python_interface_gives(
    tiny_pair: tuple[Path, Path], questions: Path
) -> None:
    report = evaluate(tiny_pair, files=(str(questions),), trees=("chain:3", "clover2"), seed=3)
    assert (report.prompts, report.left_out) == (2, 1)
    names = [(setting.tree, setting.temperature, setting.nodes) for setting in report.settings]
    assert names == [("chain:3", 0.0, 3), ("chain:3", 1.0, 3), ("clover2", 0.0, 25), ("clover2", 1.0, 25)]
    turns = [[{"role": "user", "content": QUESTIONS[i]["turns"][0]}] for i in range(2)]  # type: ignore[index]
    for setting in report.settings:
        model = load(*tiny_pair, tree=setting.tree)
        results = model.generate(turns, max_new_tokens=8, temperature=setting.temperature, seed=3)
        assert setting.acceptance == sum((one.acceptance for one in results), Acceptance())
        assert [group.group for group in setting.groups] == ["mt_bench", "translation"]


@pytest.mark.parametrize("temperatures", [(0.0,), (1.0,)])
def test_heads_are_measured_on_greedy_text(
    tiny_pair: tuple[Path, Path], questions: Path, temperatures: tuple[float, ...]
) -> None:
    report = evaluate(tiny_pair, files=(str(questions),), temperatures=temperatures)
    assert [setting.tree for setting in report.settings] == ["own tree"]
    assert (
        report.heads.text.tolist() == report.heads.target.tolist()
    )  # greedy text is the target's first choice
    written = load(*tiny_pair).generate(
        [[{"role": "user", "content": row["turns"][0]}] for row in QUESTIONS[:2]],  # type: ignore[index]
        max_new_tokens=8,
    )
    assert int(report.heads.positions[0]) == sum(len(one.tokens) for one in written)


def test_texts_are_measured_as_they_are_and_give_the_prompts(
    tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [{"text": "the cat sat on the mat"}, {"text": "hello world"}, {"text": "no"}]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    report = evaluate(tiny_pair, texts=(str(texts),), max_prompts=2, temperatures=(0.0,))
    model = load(*tiny_pair)
    tokenizer, draft = model.target.tokenizer, model.engine.draft
    assert tokenizer is not None and draft is not None
    samples = read_samples([texts], tokenizer, model.target.eos_token_ids).samples[:2]
    expected = measure_heads(model.target, draft, list(Batches(samples, 128, 1024, seed=1).epoch()))
    assert report.heads.to_dict() == expected.to_dict()
    assert report.texts == f"2 texts as written in {texts}"
    assert report.prompts == 2


def test_files_are_written(tiny_pair: tuple[Path, Path], questions: Path, tmp_path: Path) -> None:
    files = {"json": tmp_path / "new" / "found.json", "picture": tmp_path / "found.png"}
    report = evaluate(tiny_pair, files=(str(questions),), temperatures=(0.0,), **files)
    assert json.loads(files["json"].read_text(encoding="utf-8")) == json.loads(json.dumps(report.to_dict()))
    assert files["picture"].stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 1}, "heads are measured on 2 tokens"),
        ({"max_new_tokens": 127}, "no prompt leaves room for 127 new tokens"),
        ({"picture": Path("a.gif")}, "must end in .png, .pdf, .svg"),
        ({"json": Path("/")}, "is a directory"),
        ({"trees": ("chain:17",)}, "the tree is 17 deep"),
        ({"trees": ("nonsense",)}, "nonsense"),
        ({"files": ("missing.jsonl",)}, "cannot read missing.jsonl"),
        ({"texts": ("missing.jsonl",)}, "cannot read missing.jsonl"),
        ({"draft": None}, "no draft"),
        ({"temperatures": (0.0, -1.0)}, "temperature"),
    ],
)
def test_what_cannot_work_is_said(
    tiny_pair: tuple[Path, Path], questions: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(tiny_pair, **{"files": (str(questions),), **options})
