import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clover import write
from clover.drafts import Clover1Draft, Clover2Draft, LossConfig, RecallDraft
from clover.files import locked_file
from clover.train import TrainResult

PAPER = ["--system", "clover2", "--recipe", "paper"]
TEXTS = [f"def area_{i}(self, width, height):\n    return width * height * {i}\n" for i in range(20)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def train(run_clover: Callable, tiny_target: Path, data: Path, tmp_path: Path) -> Callable:
    """Return a function that trains for two steps, with more options."""

    def call(*arguments: object, data: Path = data) -> tuple[int, str, str]:
        flags = [
            "--target",
            tiny_target,
            "--output",
            tmp_path / "draft",
            "--max-length",
            64,
            "--batch-tokens",
            256,
        ]
        return run_clover("train", "--data", data, *arguments, *flags, "--max-steps", 2)

    return call


def interrupted_after(times: int) -> Callable:
    """What writes to the file, interrupted when texts have ended once more."""
    append, calls = write.append_lines, iter(range(times))

    def call(*arguments: Any) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        append(*arguments)

    return call


@pytest.fixture
def interrupted(train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The answers of a training that was interrupted while the target wrote them."""
    with monkeypatch.context() as patch:
        patch.setattr("clover.write.append_lines", interrupted_after(1))
        assert train("--regenerate", "--batch-size", 4).code == 130
    (written,) = tmp_path.glob("draft.*.written.jsonl")
    return written


def test_trained_draft_decodes_like_the_target_alone(
    train: Callable, run_clover: Callable, tiny_target: Path, tmp_path: Path
) -> None:
    code, out, err = train()
    assert (code, out.count("\n")) == (0, 2)
    assert "draft: trained 2 steps" in out
    assert re.search(
        r"accuracy of the heads( \d+\.\d%)+ on \d+ tokens of held-out texts \(too few to tell\)", out
    )
    assert re.search(r"\nestimate: none, because \d+ held-out tokens are too few to tell τ\n", out)
    assert "recall learns from 20 texts for 2 steps in " in err and "clover evaluate --target" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "texts.jsonl"]
    generate = ["generate", "def area", "--target", tiny_target, "--max-new-tokens", 16]
    drafted = run_clover(*generate, "--draft", tmp_path / "draft")
    assert drafted.code == 0
    assert drafted.out == run_clover(*generate, "--tree", "plain").out
    assert "τ" in drafted.err


def test_the_estimate_says_of_what_text_it_is(train: Callable, tmp_path: Path) -> None:
    lines = (json.dumps({"text": f"{n} more texts, and another. " * 8}) for n in range(300))
    (tmp_path / "more.jsonl").write_text("".join(line + "\n" for line in lines))
    code, out, err = train(tmp_path / "more.jsonl")
    assert code == 0
    accuracy = r"accuracy of the heads( \d+\.\d%){5} on [\d,]+ tokens of held-out texts \(± \d+\.\d%\)"
    estimate = (
        r"estimate: τ [1-6]\.\d\d \(tokens per step\) with a chain of 5, greedy, along ([\d,]+) tokens of "
    )
    assert re.search(accuracy, out)
    found = re.search(estimate + r"held-out texts; (\d+)% of them the target's own", out)
    result = json.loads((tmp_path / "draft" / "training_config.json").read_text())["result"]["validation"]
    tokens, own = result["tau_tokens"], result["tau_own_tokens"]
    assert found and int(found[1].replace(",", "")) == tokens >= 100
    assert int(found[2]) == round(100 * own / tokens)
    assert ("the target itself would write another token" in err) == (
        own < 0.7 * tokens
    ) and "clover evaluate" in err


def test_several_files_may_follow_data(train: Callable, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("one more text\n")
    assert train(tmp_path / "more.txt").code == 0
    record = json.loads((tmp_path / "draft" / "training_config.json").read_text())
    assert [Path(name).name for name in record["config"]["data"]] == ["texts.jsonl", "more.txt"]


def test_target_writes_the_answers_itself(train: Callable, tmp_path: Path) -> None:
    code, _, err = train("--regenerate")
    assert code == 0
    written = list(tmp_path.glob("draft.*.written.jsonl"))
    assert len(written) == 1
    assert len(written[0].read_text().splitlines()) == len(TEXTS)
    assert "continues the texts" not in err
    assert "continues the texts" in train("--regenerate", "--overwrite").err


def test_a_mistake_in_the_draft_is_found_before_the_target_writes(train: Callable, tmp_path: Path) -> None:
    code, out, err = train("--regenerate", "--set", "num_heads=two")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "num_heads is 'two'" in err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


def test_a_field_is_named_once(train: Callable) -> None:
    for flag, value, field in (("--heads", 2, "num_heads"), ("--hidden-state", "pre_norm", "hidden_state")):
        code, _, err = train(flag, value, "--set", f"{field}=3")
        assert (code, err.count("\n")) == (2, 1) and f"{flag} and --set {field}" in err


def test_one_process_at_a_time_writes_the_answers(train: Callable, tmp_path: Path, interrupted: Path) -> None:
    begun = interrupted.read_text()
    with locked_file(interrupted):
        code, _, err = train("--regenerate", "--resume")
    assert code == 2 and "another process writes" in err.splitlines()[-1]
    assert interrupted.read_text() == begun
    assert sorted(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("flags", [[], ["--regenerate"]])
def test_what_is_left_out_is_told_at_once_and_in_the_end(
    train: Callable, data: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setattr("clover.data.texts._CHECKED", 1)
    data.write_text(data.read_text() + "{broken\n" * 30)
    code, _, err = train(*flags)
    lines = [line for line in err.splitlines() if "left out" in line]
    assert code == 0
    told = lines[0].removeprefix("MORE THAN HALF CANNOT BE USED: ")
    assert told.startswith("left out 30 of 50 texts read; the first: ") and told != lines[0]
    assert lines[1:] == lines[:1]


def test_an_interrupted_writing_is_resumed_and_trained_on(train: Callable, interrupted: Path) -> None:
    begun = interrupted.read_text()
    assert 0 < len(begun.splitlines()) < len(TEXTS)
    code, _, err = train("--regenerate", "--resume", "--seed", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "same target, data and options" in err
    code, out, err = train("--regenerate", "--resume")
    assert (code, "trained 2 steps" in out, "continues the texts" in err) == (0, True, True)
    assert interrupted.read_text().startswith(begun)
    assert len(interrupted.read_text().splitlines()) == len(TEXTS)


def test_no_minutes_take_the_texts_there_are(train: Callable, interrupted: Path) -> None:
    begun = interrupted.read_text()
    code, out, err = train("--regenerate", "--regenerate-minutes", 0)
    assert (code, "trained 2 steps" in out, "continues the texts" in err) == (0, True, True)
    assert interrupted.read_text() == begun
    interrupted.unlink()
    code, _, err = train("--regenerate", "--regenerate-minutes", 0, "--overwrite")
    assert (code, err.count("\n")) == (2, 1)
    assert "the target wrote nothing" in err and "the time" in err


def test_training_that_began_on_written_texts_goes_on_with_the_same(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.write.append_lines", interrupted_after(1))
    assert train("--regenerate", "--batch-size", 4).code == 130
    monkeypatch.undo()
    (written,) = tmp_path.glob("draft.*.written.jsonl")
    (tmp_path / "draft.training").mkdir()
    (tmp_path / "draft.training" / "checkpoint.safetensors").touch()
    seen = []

    def stopped(
        _config: object, _target: object, samples: list, _draft: object, **options: object
    ) -> TrainResult:
        seen.append((len(samples), options["resume"]))
        return TrainResult(finished=False, steps=1, tokens=9, seconds=1.0, training={}, validation=None)

    monkeypatch.setattr("clover.train.train", stopped)
    code, out, err = train("--regenerate", "--resume")
    assert (code, out) == (130, "") and "--resume continues it" in err
    assert seen == [(len(written.read_text().splitlines()), True)]


def test_options_of_draft_and_loss_arrive(train: Callable, tmp_path: Path) -> None:
    flags = ["--heads", 2, "--regression-weight", 0.25, "--likely-tokens-only", "--dtype", "float32"]
    assert train(*flags).code == 0
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    assert config["draft"]["num_heads"] == 2
    assert (config["loss"]["regression_weight"], config["loss"]["likely_tokens_only"]) == (0.25, True)
    assert config["dtype"] == "float32"
    assert train("--overwrite", "--dtype", "float32").code == 0
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    assert config["loss"] == asdict(RecallDraft.training_defaults.loss)
    assert train("--overwrite", "--loss", "distillation").code == 0
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    assert config["loss"] == asdict(LossConfig())


def test_another_system_its_options_and_its_own_loss(train: Callable, tmp_path: Path) -> None:
    flags = ["--system", "clover1", "--loss", "paper", "--set", "connection=mlp", "--set", "num_heads=2"]
    assert train(*flags).code == 0
    draft = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert (draft["model_type"], draft["connection"], draft["num_heads"]) == ("clover1", "mlp", 2)
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    assert config["system"] == "clover1"
    assert config["loss"] == asdict(Clover1Draft.training_defaults.paper_loss)


def test_a_large_vocabulary_is_not_proposed_from_as_a_whole(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clover.drafts.vocabulary._LARGE", 64)
    for flags, size in (([], 64), (["--set", "draft_vocab_size=null"], None), (PAPER, None)):
        assert train("--overwrite", *flags).code == 0
        assert json.loads((tmp_path / "draft" / "config.json").read_text())["draft_vocab_size"] == size


def test_the_recipe_of_the_paper_is_shown_and_options_beside_it_win(train: Callable, tmp_path: Path) -> None:
    code, _, err = train("--system", "clover2", "--recipe", "paper", "--lr", "0.01", "--heads", 2)
    assert code == 0
    (shown,) = [line for line in err.splitlines() if line.startswith("recipe paper: ")]
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    paper = Clover2Draft.training_defaults.paper_recipe
    assert (config["optimizer"], config["lr"], config["clip"]) == ("adamw", 0.01, None)
    assert (config["clip_value"], config["weight_decay"]) == (paper.clip_value, paper.weight_decay)
    assert config["loss"] == asdict(Clover2Draft.training_defaults.paper_loss)
    assert config["draft"] == {"draft_vocab_size": None, **paper.options, "num_heads": 2}
    assert all(f"{name} " in shown for name in ("lr", "clip_value", "warm_up", *paper.options))


def test_a_training_goes_on_from_a_trained_draft(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learnt(name: str) -> tuple[dict, dict[str, Tensor]]:
        folder = tmp_path / name
        return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")

    monkeypatch.setattr("clover.drafts.vocabulary._LARGE", 64)
    assert train("--system", "medusa", "--heads", 2).code == 0
    (tmp_path / "draft").rename(tmp_path / "first")
    assert train("--start-from", tmp_path / "first", "--lr", 1e-9, "--set", "draft_vocab_size=70").code == 0
    (before, old), (after, new) = learnt("first"), learnt("draft")
    assert (after["model_type"], after["num_heads"]) == ("medusa", 2)
    assert (before.pop("draft_vocab_size"), after.pop("draft_vocab_size")) == (64, 70)
    assert before == after
    old_tokens, new_tokens = old.pop("d2t"), new.pop("d2t")
    both = [token for token in old_tokens.tolist() if token in new_tokens]
    assert len(both) > 50
    for name in (rows := [name for name in old if "lm_head" in name]):
        here, there = (torch.isin(tokens, torch.tensor(both)) for tokens in (old_tokens, new_tokens))
        torch.testing.assert_close(
            old.pop(name)[..., here, :], new.pop(name)[..., there, :], atol=1e-6, rtol=0
        )
    assert rows
    torch.testing.assert_close(old, new, atol=1e-6, rtol=0)
    config = json.loads((tmp_path / "draft" / "training_config.json").read_text())["config"]
    assert config["start_from"] == str(tmp_path / "first")


def test_what_a_draft_to_go_on_from_cannot_become_is_named(train: Callable, tmp_path: Path) -> None:
    assert train("--heads", 2).code == 0
    (tmp_path / "draft").rename(tmp_path / "first")
    for start, flags, problem in (
        ("first", ["--heads", 3], "has num_heads = 2, and keeps it; 3 takes a new draft"),
        ("first", ["--system", "medusa"], "is a draft of recall, not of medusa"),
        ("first", ["--set", "depth=2"], "recall has no option 'depth'"),
        ("none", [], "none: no such directory"),
    ):
        code, out, err = train("--start-from", tmp_path / start, *flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert problem in err
    assert train("--start-from", tmp_path / "first", "--heads", 2).code == 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--recipe", "best"], "--recipe is 'best'"),
        (["--recipe", "paper", "--system", "medusa"], "recipe of medusa's paper is not known"),
        (["--loss", "paper"], "--loss is 'paper'; for recall it must be one of default, distillation"),
        (["--system", "clover9"], "no draft system 'clover9'"),
        (["--system", "lookup"], "lookup was removed"),
        (["--loss", "mse"], "--loss is 'mse'"),
        (["--set", "num_heads"], "must be FIELD=VALUE"),
        (["--set", "num_heads=two"], "num_heads is 'two'; it must be a valid integer"),
        (["--set", "depth=2"], "recall has no option 'depth'"),
    ],
)
def test_impossible_systems_and_options_are_named(train: Callable, flags: list[str], problem: str) -> None:
    code, out, err = train(*flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_what_is_in_the_way_of_a_resumed_run_is_said_before_the_target_is_loaded(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clover.target.TargetModel.load", lambda *_, **__: pytest.fail("the target was loaded")
    )
    for flags in (["--resume"], ["--resume", "--regenerate"]):
        code, _, err = train(*flags)
        assert (code, err.count("\n")) == (2, 1)
        assert "nothing to resume" in err
    (tmp_path / "draft.training").mkdir()
    (tmp_path / "draft.training" / "checkpoint.safetensors").touch()
    assert "unfinished run" in train("--regenerate").err


def test_existing_output_is_refused_before_the_target_is_loaded(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "precious").touch()
    monkeypatch.setattr(
        "clover.target.TargetModel.load", lambda *_, **__: pytest.fail("the target was loaded")
    )
    code, _, err = train()
    assert (code, err.count("\n")) == (2, 1)
    assert "not empty" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no records"),
        ("{broken\n", "texts.jsonl"),
        ('{"txet": "a"}\n', "texts.jsonl"),
        ('{"messages": [{"role": "user", "content": "hello"}]}\n', "none is the assistant's"),
    ],
)
def test_bad_data_is_one_line(
    train: Callable, data: Path, tmp_path: Path, content: str, message: str
) -> None:
    data.write_text(content)
    code, out, err = train()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-minutes", "0"], "max_minutes"),
        (["--lr", "-1"], "lr"),
        (["--dtype", "int8"], "dtype is 'int8'; it must be 'bfloat16' or 'float32'"),
        (["--hidden-state", "middle"], "hidden_state"),
        (["--heads", "0"], "head"),
        (["--regression-weight", "-1"], "regression-weight"),
        (["--batch-size", "0"], "batch-size"),
        (["--resume"], "nothing to resume"),
        (["--regenerate-minutes", "1"], "limits --regenerate; give both"),
    ],
)
def test_bad_options_are_one_line(
    train: Callable, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = train(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]
