import json
import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clover.data import Batches, HeldOut, Sample, SampleTexts, Texts
from clover.drafts import Clover2Draft, DraftModel, LossConfig, RecallDraft, load_draft
from clover.drafts.eagle import EagleDraft
from clover.errors import UserError
from clover.target import TargetModel
from clover.train import TrainConfig, TrainResult, checkpoint_path, train
from clover.train.losses import count_positions
from clover.train.objective import Objective
from clover.train.optimizers import peak_rate
from clover.train.record import read_record
from clover.train.trainer import Trainer
from tests.families import VOCAB, tiny_model
from tests.train.steps import after_steps, at_each_step


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama", dtype=torch.float32))


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Texts that count upwards in steps of one or two: a draft can learn them, the random target cannot."""
    texts = []
    for i in range(60):
        tokens = (i + (1 + i % 2) * torch.arange(12 + i % 20)) % VOCAB
        texts.append(Sample(tokens.int(), torch.arange(len(tokens)) >= i % 4))
    return texts


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        output=str(tmp_path / "draft"),
        max_length=24,
        batch_tokens=120,
        max_steps=8,
        validation_share=0.2,
        lr=3e-3,
    )


def make_draft(target: TargetModel, seed: int = 0) -> Clover2Draft:
    torch.manual_seed(seed)
    return Clover2Draft.from_target(target, num_heads=3, num_augmenting_layers=1)


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def run(
    config: TrainConfig, target: TargetModel, samples: Texts | list[Sample], **options: Any
) -> TrainResult:
    draft = options.pop("draft", None) or make_draft(target)
    return train(config, target, samples, draft, console=options.pop("console", quiet()), **options)


def weights(config: TrainConfig) -> dict[str, torch.Tensor]:
    return load_file(Path(config.output) / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def rewrite_state(path: Path, **fields: str) -> None:
    """Let a checkpoint say that it was saved by another run."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    content = json.loads(metadata["clover"])
    content["state"] |= fields
    save_file(load_file(path), path, metadata | {"clover": json.dumps(content)})


def test_the_draft_learns_and_is_written_with_its_record(config, target, samples) -> None:
    config = replace(config, max_steps=60, epochs=1)
    draft = make_draft(target)
    result = run(config, target, samples, draft=draft)
    folder = Path(config.output)
    assert result.finished
    assert result.steps == 60
    record = json.loads((folder / "training_config.json").read_text())
    assert record["config"] == config.to_dict() | {"dtype": "float32", "optimizer": "muon"}
    assert record["provenance"]["machine"] and record["provenance"]["date"]
    assert record["result"]["validation"] == result.validation
    log = [json.loads(line) for line in (folder / "training_log.jsonl").read_text().splitlines()]
    assert log[-1]["validation"] == result.validation
    assert log[-2]["step"] == 60
    assert not config.work_directory.exists()
    assert [path.name for path in folder.parent.iterdir()] == ["draft"]

    loaded = load_draft(folder, target)
    tokens = samples[0].tokens.long()[None]
    hidden = target.train_forward(tokens).hidden
    torch.testing.assert_close(loaded(hidden, tokens), draft(hidden, tokens))
    batches = list(Batches(samples, 24, 120, seed=5).epoch())
    before, after = (
        Objective(config, one).measure(batches).metrics.summary(config.loss)["loss"]
        for one in (make_draft(target), loaded)
    )
    assert after < 0.97 * before


def test_a_step_that_is_repeated_is_learnt_at_its_first_depths_before_all(config, target, samples) -> None:
    def heads(draft: DraftModel, **options: Any) -> list[int]:
        run(replace(config, save_every_minutes=0.0, **options), target, samples, draft=draft, overwrite=True)
        log = (Path(config.output) / "training_log.jsonl").read_text().splitlines()
        return [len(entry["accuracy"]) for entry in map(json.loads, log) if "accuracy" in entry]

    few: dict[str, Any] = {"few_depths": 0.5, "max_minutes": 1e9}  # so the steps say what is spent
    assert heads(RecallDraft.from_target(target, num_heads=3), **few) == [2] * 4 + [3] * 4
    assert heads(RecallDraft.from_target(target, num_heads=3), few_depths=0.5) == [3] * 8
    assert heads(RecallDraft.from_target(target, num_heads=1), **few) == [1] * 8
    assert heads(make_draft(target), **few) == [3] * 8


@pytest.mark.parametrize("step_tokens", [None, 200])
def test_an_interrupted_run_ends_on_the_same_bits(config, target, samples, step_tokens, tmp_path) -> None:
    config = replace(config, step_tokens=step_tokens, dtype="bfloat16")
    other = replace(config, output=str(tmp_path / "other"))
    run(config, target, samples)

    with at_each_step(after_steps(3, lambda: os.kill(os.getpid(), signal.SIGTERM))):
        stopped = run(other, target, samples)
    assert (stopped.finished, stopped.steps) == (False, 4)
    assert not Path(other.output).exists()
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UserError, match="holds an unfinished run; resume it, or overwrite"):
        run(other, target, samples)
    resumed = run(other, target, samples, draft=make_draft(target, seed=1), resume=True)
    assert (resumed.finished, resumed.steps) == (True, 8)
    assert same(weights(config), weights(other))


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("during", ["measure", "estimate", "the last step"])
def test_ctrl_c_ends_the_last_measurements_and_loses_nothing(
    config, target, samples, during, tmp_path, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    other = replace(config, output=str(tmp_path / "other"))
    whole = run(config, target, samples)
    with monkeypatch.context() as patched:
        if during == "the last step":
            patched.setattr(Trainer, "_finish", lambda _: pytest.fail("it measures"))
        else:
            patched.setattr(Objective, during, interrupt)
        with at_each_step(after_steps(7, interrupt) if during == "the last step" else lambda _: None):
            stopped = run(other, target, samples)
    assert (stopped.finished, stopped.steps, stopped.validation) == (False, 8, None)
    assert not Path(other.output).exists()
    resumed = run(other, target, samples, draft=make_draft(target, seed=1), resume=True)
    assert (resumed.finished, resumed.validation) == (True, whole.validation)
    assert same(weights(config), weights(other))


def test_a_killed_run_goes_on_from_its_last_checkpoint(config, target, samples, tmp_path) -> None:
    config = replace(config, save_every_minutes=0.0)
    other = replace(config, output=str(tmp_path / "other"))
    run(config, target, samples)

    def die() -> None:
        found.extend(sorted(path.name for path in tmp_path.iterdir()))
        raise KeyboardInterrupt

    found: list[str] = []
    with at_each_step(after_steps(5, die)), pytest.raises(KeyboardInterrupt):
        run(other, target, samples)
    assert found == ["draft", "other.training"]  # all that a SIGKILL would leave
    log = other.work_directory / "log.jsonl"
    log.write_text(log.read_text() + '{"step": 6, "loss": 1.0}\n{"st')
    assert run(other, target, samples, resume=True).steps == 8
    assert same(weights(config), weights(other))
    steps = [
        json.loads(line)["step"]
        for line in (Path(other.output) / "training_log.jsonl").read_text().splitlines()
    ]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8, 8]


class Failing(SampleTexts):
    """Texts that cannot be read from a moment on."""

    broken = False

    def __getitem__(self, row: int) -> Sample:
        if self.broken:
            raise UserError("cannot read the texts: input/output error")
        return super().__getitem__(row)


def test_where_the_texts_fail_what_was_learnt_is_kept(config, target, samples, monkeypatch, tmp_path) -> None:
    config = replace(config, step_tokens=200)
    other = replace(config, output=str(tmp_path / "other"))
    monkeypatch.setattr("clover.data.batching._BLOCK_TEXTS", 12)
    run(config, target, samples)

    texts = Failing(samples)
    with at_each_step(after_steps(2, lambda: setattr(texts, "broken", True))):
        with pytest.raises(UserError, match="cannot read the texts"):
            run(other, target, texts)
    steps = [
        json.loads(line)["step"] for line in (other.work_directory / "log.jsonl").read_text().splitlines()
    ]
    assert 2 < steps[-1] < 8
    texts.broken = False
    assert run(other, target, texts, resume=True).steps == 8
    assert same(weights(config), weights(other))


def test_of_few_texts_one_is_held_out(config, target, samples) -> None:
    few = [one for one in samples if not HeldOut(0.02)(one)][:5]
    result = run(replace(config, validation_share=0.02), target, few)
    assert result.validation is not None
    assert run(replace(config, validation_share=0.0), target, few, overwrite=True).validation is None


def test_what_cannot_be_resumed_says_why(config, target, samples) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        run(config, target, samples, resume=True)
    with at_each_step(after_steps(2, lambda: os.kill(os.getpid(), signal.SIGINT))):
        run(config, target, samples)
    with pytest.raises(UserError, match=r"started with lr = 0.003, not 0.001"):
        run(replace(config, lr=1e-3), target, samples, resume=True)
    with pytest.raises(UserError, match="other texts"):
        run(config, target, samples[1:], resume=True)
    rewrite_state(checkpoint_path(config), device="cuda")
    with pytest.raises(UserError, match="trained on cuda, not cpu; resume with --device cuda"):
        run(config, target, samples, resume=True)
    rewrite_state(checkpoint_path(config), dtype="bfloat16")
    with pytest.raises(UserError, match="target in bfloat16, not float32; resume with --dtype bfloat16"):
        run(config, target, samples, resume=True)
    longer = replace(config, max_steps=4)
    assert run(longer, target, samples, overwrite=True).steps == 4
    assert not config.work_directory.exists()


def test_weights_that_are_not_finite_replace_no_checkpoint(config, target, samples) -> None:
    draft = make_draft(target)

    def spoil(step: int) -> None:
        if step == config.max_steps:
            draft.first_projector.weight.data[0, 0] = float("inf")

    with at_each_step(spoil), pytest.raises(UserError, match="the weights are not finite at step 8"):
        run(config, target, samples, draft=draft)
    assert not Path(config.output).exists() and not list(config.work_directory.glob("checkpoint*"))


def test_bad_runs_write_nothing(config, target, samples, tmp_path) -> None:
    big = [Sample(torch.full((9,), VOCAB, dtype=torch.int32), torch.ones(9, dtype=torch.bool))]
    with pytest.raises(UserError, match="another tokenizer"):
        run(config, target, big)
    with pytest.raises(UserError, match="no text is long enough"):
        run(config, target, [])
    with pytest.raises(UserError, match="the loss is nan at step"):
        broken = make_draft(target)
        broken.first_projector.weight.data.fill_(float("nan"))
        run(config, target, samples, draft=broken)
    assert not Path(config.output).exists()
    assert not (config.work_directory / "checkpoint.safetensors").exists()
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "mine").touch()
    with pytest.raises(UserError, match="not empty"):
        run(config, target, samples)


def test_minutes_bound_a_run(config, target, samples) -> None:
    result = run(replace(config, max_steps=None, max_minutes=0.01), target, samples)
    assert result.finished
    assert 0.6 <= result.seconds < 20 and result.steps > 0


def test_the_smallest_budget_is_one_step(config, target, samples) -> None:
    result = run(replace(config, max_steps=None, max_minutes=1e-9), target, samples)
    assert (result.finished, result.steps) == (True, 1)
    assert read_record(config.output).result.steps == 1


def test_likely_tokens_only_and_pre_norm_states(config, target, samples) -> None:
    torch.manual_seed(0)
    draft = Clover2Draft.from_target(target, num_heads=2, num_augmenting_layers=1, hidden_state="pre_norm")
    config = replace(config, max_steps=2, loss=LossConfig(likely_tokens_only=True))
    assert run(config, target, samples, draft=draft).finished


def test_accumulated_batches_give_the_gradient_of_one_large_batch(config, target, samples) -> None:
    small = list(Batches(samples[:6], 24, 48, seed=0).epoch())
    large = list(Batches(samples[:6], 24, 10_000, seed=0).epoch())
    assert len(small) > len(large) == 1
    counts = count_positions(large[0].predicted_mask, 3)
    gradients = []
    for batches in (small, large):
        objective = Objective(config, draft := make_draft(target))
        for batch in batches:
            objective.loss(batch, 3, counts)[0].backward()
        gradients.append({name: weight.grad for name, weight in draft.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_the_rate_follows_from_the_width_unless_given(config, target, samples) -> None:
    derived = replace(config, lr=None, max_steps=1)
    assert peak_rate(derived, RecallDraft, 256) == pytest.approx(4e-3)
    assert peak_rate(derived, RecallDraft, 4096) == pytest.approx(peak_rate(derived, RecallDraft, 64) / 8)
    assert peak_rate(derived, EagleDraft, 64) == pytest.approx(3e-3)  # AdamW's
    assert peak_rate(replace(derived, optimizer="muon"), EagleDraft, 256) == pytest.approx(4e-3)
    assert peak_rate(config, EagleDraft, 4096) == 3e-3
    run(derived, target, samples)
    record = json.loads((Path(derived.output) / "training_config.json").read_text())
    assert record["config"]["lr"] == peak_rate(derived, RecallDraft, target.hidden_size)


def test_epochs_bound_a_run(config, target, samples) -> None:
    config = replace(config, max_steps=None, epochs=1.5, validation_share=0.0)
    result = run(config, target, samples)
    windows = [n for s in samples for n in [len(s.tokens[:24]), len(s.tokens[24:])] if n > 2]
    assert sum(windows) < result.tokens < 2 * sum(windows)
    assert result.validation is None
