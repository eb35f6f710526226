"""Run a training from its first step, or from a checkpoint, to the finished draft. `Trainer.fit` is the loop.

If steps are a run's only limit, its weights are bitwise the same, however often the run is stopped and resumed.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from rich.console import Console
from torch import Tensor, nn

from clover.data import (
    Batches,
    Position,
    Sample,
    SampleTexts,
    TextBatch,
    Texts,
    choose_held_out,
    token_counts,
)
from clover.data.batching import first_batches
from clover.data.features import FeatureStore, check_store, hidden_scale
from clover.drafts import DraftModel
from clover.drafts.vocabulary import frequent_tokens
from clover.errors import UserError
from clover.files import check_output_directory, locked_directory, output_directory, write_json
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.measure.report.words import number_of
from clover.target import TargetWeights
from clover.train.budget import TrainingBudget, pass_tokens
from clover.train.config import TrainConfig
from clover.train.log import TrainingLog, describe_entry, stop_requests
from clover.train.losses import count_positions
from clover.train.objective import Objective, fit_to_held_out
from clover.train.optimizers import clip_gradients, make_optimizers, optimizer_name, peak_rate, set_rate
from clover.train.record import LOG_FILE, RECORD_FILE
from clover.train.saving import Checkpoints, check_unfinished, log_path, remove_unfinished

_LOG_EVERY_SECONDS = 2.0
_SCALE_BATCHES, _SCALE_TOKENS = 8, 64  # batches, and tokens of one text in each
# The draft's vocabulary consists of the most frequent tokens in this many tokens of text.
_COUNTED_TOKENS = 2**18
_CHARACTERS_PER_TOKEN = 8  # more than in most texts


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    Args:
        finished: False if a signal stopped the run; then it can be resumed.
        steps, tokens, seconds: totals of the run, including resumed parts; padding is not counted.
        training: the last log entry: the loss, and for each head distillation, regression and accuracy. If nothing was
            learnt, it is `validation`.
        validation: the same metrics of the final draft on held-out texts, in the dtype of the training. `tau` is for a
            greedy chain of `chain` tokens along `tau_tokens` tokens, of which `tau_own_tokens` are the target's first
            choice. None if there are no held-out texts, or the run was stopped.
    """

    finished: bool
    steps: int
    tokens: int
    seconds: float
    training: dict[str, Any]
    validation: dict[str, Any] | None


def train(
    config: TrainConfig,
    target: TargetWeights,
    texts: Texts | Sequence[Sample],
    draft: DraftModel,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> TrainResult:
    """Train `draft` in place, and write it to `config.output` with the options, the results and the log.

    Ctrl-C and SIGTERM end the run after the current step, and a checkpoint is saved. Ctrl-C ends the last measurements.

    Args:
        config: the options.
        target: the frozen target.
        texts: the texts, or samples in memory; some of them are held out for validation.
        draft: a draft for `target` with its starting values. The finished draft has the target's dtype.
        resume: continue the unfinished run in `config.work_directory`.
        overwrite: replace an existing output directory, and discard an unfinished run.
        console: the output for progress; standard error by default.

    Raises:
        UserError: options, data, target and draft do not fit together; the output cannot be written; an unfinished run
            exists, or cannot be resumed; or the loss is no longer finite.
    """
    check_unfinished(config, resume, overwrite)
    check_output_directory(config.output, overwrite)
    with locked_directory(config.work_directory), Progress(console) as progress:
        progress.say("looking at the texts")
        trainer = Trainer(config, target, texts, draft, progress)
        if resume:
            trainer.restore()
        else:
            trainer.measure_scale()
            remove_unfinished(config)
        result = trainer.fit()
        if not result.finished:
            return result
        with output_directory(config.output, overwrite) as folder:
            trainer.write(folder, result)
    remove_unfinished(config)
    return result


class Trainer:
    """A draft with its optimizers, its texts and the state of its training. For the arguments, see `train`.

    The trainer converts the draft's weights to float32.
    """

    def __init__(
        self,
        config: TrainConfig,
        target: TargetWeights,
        texts: Texts | Sequence[Sample],
        draft: DraftModel,
        progress: Progress,
    ):
        self.config, self.target, self.draft, self.progress = config, target, draft.bind(target), progress
        self.texts = texts if isinstance(texts, Texts) else SampleTexts(texts)
        share = 1.0 if config.only_fits else config.validation_share
        self.held_out = choose_held_out(self.texts, share, self._max_length)
        self.batches = self._make_batches(seed=config.seed, side=self._is_learnt)
        self.token_counts = self._reduce_vocabulary()
        self.objective = Objective(config, draft, self._stored_features())
        # `eval` turns dropout off; gradients are still computed.
        cast(nn.Module, draft).to(target.device).eval()
        self.parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
        for parameter in self.parameters:
            parameter.data = parameter.data.float()
        self.lr = peak_rate(config, type(draft), target.hidden_size)
        self.optimizers = make_optimizers(draft, config, self.lr)
        self.checkpoints = Checkpoints(config, target, self.texts.fingerprint, draft, self.optimizers)
        self.budget, self.entry = TrainingBudget(config, self.batches, target.hidden_size), dict[str, Any]()
        torch.manual_seed(config.seed)

    def fit(self) -> TrainResult:
        """Train until the budget is spent or a signal arrives; save a checkpoint; measure if the budget is spent."""
        self._begin()
        with stop_requests() as stopped:
            while not self.budget.is_spent and not stopped():
                batches, depths = self._next_batches(), self.budget.depths(self.draft)
                counts = (count_positions(batch.predicted_mask, depths) for batch in batches)
                position_counts = sum(counts, torch.zeros(depths, dtype=torch.float32))
                for batch in batches:
                    loss, metrics = self.objective.loss(batch, depths, position_counts)
                    loss.backward()
                    self.log.add(metrics)
                clip_gradients(self.parameters, self.config)
                for optimizer in self.optimizers.values():
                    set_rate(optimizer, self.lr * self.budget.rate)
                    optimizer.step()
                    optimizer.zero_grad()
                self.budget.count(batches)
                self._save_or_report()
            self.save()
        finished, validation = self.budget.is_spent and not stopped(), None
        try:
            validation = self._finish() if finished else None
        except KeyboardInterrupt:  # The checkpoint has all that was learnt.
            finished = False
        budget, training = self.budget, self.log.entry or validation or {}
        return TrainResult(finished, budget.step, budget.tokens, budget.seconds, training, validation)

    def measure_scale(self) -> None:
        """Measure the unit of the regression loss on the beginning of one text in each of the first batches."""
        first = [next(self.batches) for _ in range(_SCALE_BATCHES)]
        self.batches.position = Position()
        openings = (batch.opening(_SCALE_TOKENS).to(self.target.device) for batch in first)
        states = ((self.objective.features(batch).hidden_target, batch.lengths) for batch in openings)
        self.objective.scale = hidden_scale(states)

    def restore(self) -> None:
        """Restore the state of the checkpoint; UserError if there is none, or it does not fit."""
        state = self.checkpoints.load()
        self.draft.bind(self.target)  # because the checkpoint may have another vocabulary
        self.batches.position = state.position
        self.budget.resume(state.step, state.tokens, state.seconds)
        self.objective.scale, self.entry = state.scale, state.entry

    def save(self) -> None:
        """Write a checkpoint if the loss and the weights are finite, so that a bad state never replaces a good one."""
        self._report()
        if not all(bool(weight.isfinite().all()) for weight in self.parameters):
            self._refuse("the weights are not finite")
        self.checkpoints.save(
            position=self.batches.position,
            step=self.budget.step,
            tokens=self.budget.tokens,
            seconds=self.budget.seconds,
            scale=self.objective.scale,
            entry=self.log.entry,
        )
        self._saved = time.monotonic()

    def write(self, folder: Path, result: TrainResult) -> None:
        """Write the finished draft in the target's dtype, with the record of its training."""
        for parameter in self.draft.parameters():
            parameter.data = parameter.data.to(self.target.dtype)
        self.draft.config.note_target(self.target)
        self.draft.save_pretrained(folder)
        settled = {
            "lr": self.lr,
            "optimizer": optimizer_name(self.config, type(self.draft)),
            "dtype": "bfloat16" if self.objective.bf16 else "float32",
            "batch_tokens": self._batch_tokens,
        }
        record = {
            "config": self.config.to_dict() | settled,
            "result": asdict(result),
            "provenance": asdict(Provenance.here("clover train", self.target.device, self.target.dtype)),
            "resources": {
                "peak_memory_bytes": _peak_memory(self.target.device),
                "checkpoint_bytes": self.checkpoints.path.stat().st_size,
            },
        }
        write_json(folder / RECORD_FILE, record)
        shutil.copyfile(self.log.path, folder / LOG_FILE)

    def _begin(self) -> None:
        """Start the clock, and show that the training has begun."""
        self.budget.start()
        self.log = TrainingLog(log_path(self.config), self.config.loss, self.budget)
        self.log.entry = self.entry
        self._saved = time.monotonic()
        self.progress.say("training")
        self.progress.begin(1.0, self.budget.spent)  # after the first texts were read
        self.progress.log(self._describe())
        if self.texts.left_out:
            self.progress.log(self.texts.left_out)

    def _describe(self) -> str:
        """Return the chosen settings in one line."""
        device = self.target.device.type
        where = f"{torch.get_num_threads()} threads" if device == "cpu" else device
        dtype = "bfloat16" if self.objective.bf16 else "float32"
        bounds = {"steps": self.config.max_steps, "minutes": self.config.max_minutes}
        bound = " or ".join(f"{value:g} {unit}" for unit, value in bounds.items() if value is not None)
        bound = bound or f"{self.config.epochs:g} epochs"
        return (
            f"{self.config.system} learns from {number_of(len(self.texts), 'text')} for {bound} "
            f"in {dtype} on {where}, {self._batch_tokens:,} tokens at a time"
        )

    def _next_batches(self) -> list[TextBatch]:
        """Return the batches of the next step. If the texts cannot be read, save a checkpoint and raise the error."""
        place, tokens = self.batches.position, self.budget.step_tokens
        batches: list[TextBatch] = []
        try:
            while not batches or sum(int(batch.lengths.sum()) for batch in batches) < tokens:
                batches.append(next(self.batches))
        except Exception:
            self.batches.position = place
            if self.budget.step:
                self.save()
            raise
        return batches

    def _save_or_report(self) -> None:
        if time.monotonic() - self._saved >= 60 * self.config.save_every_minutes:
            self.save()
        elif self.log.seconds_since >= _LOG_EVERY_SECONDS:
            self._report()

    def _report(self) -> None:
        """Log and show the metrics since the last report."""
        if self.log.report(self.lr * self.budget.rate):
            if not math.isfinite(loss := self.log.entry["loss"]):
                self._refuse(f"the loss is {loss}")
            self.progress.reach(self.budget.spent, describe_entry(self.log.entry))

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{what} at step {self.budget.step}; lower the learning rate ({self.lr:.2g})")

    def _finish(self) -> dict[str, Any] | None:
        """Fit the draft to held-out texts, and return its metrics on them; None if no text can be used."""
        if (batches := self._held_out_batches()) is None:
            return None
        measured = self.objective.measure(self.progress.each(batches))
        if fit_to_held_out(self.draft, measured, self.config, self.token_counts):
            self.progress.say("measuring the smaller vocabulary")
            measured = self.objective.measure(self.progress.each(batches))
        self.progress.say("measuring how many tokens are accepted")
        found = self.objective.estimate(batches)
        chain = {"chain": self.draft.trained_depths, "tau": found.acceptance.tau}
        chain |= {"tau_tokens": found.tokens, "tau_own_tokens": found.own}
        validation = measured.metrics.summary(self.config.loss) | chain
        self.log.write({"step": self.budget.step, "validation": validation})
        return validation

    def _held_out_batches(self) -> list[TextBatch] | None:
        if self.held_out is None:
            return None
        self.progress.say("measuring on held-out texts")
        tokens = self.budget.held_out_tokens
        try:  # The blocks are small, because a block of the usual size could need all of the few held-out texts.
            size = _CHARACTERS_PER_TOKEN * tokens
            batches = self._make_batches(seed=0, side=self.held_out, block_size=size)
            return list(first_batches(batches.epoch(), tokens))
        except UserError as error:  # Otherwise the trained weights would be lost.
            if self.config.only_fits:
                raise
            self.progress.log(
                f"no held-out text can be measured, so the draft's vocabulary and copies are unchanged: {error}"
            )
            return None

    def _make_batches(self, **options: Any) -> Batches:
        vocab_size = self.target.vocab_size
        return Batches(self.texts, self._max_length, self._batch_tokens, vocab_size=vocab_size, **options)

    def _is_learnt(self, text: Any) -> bool:
        return self.config.only_fits or self.held_out is None or not self.held_out(text)

    @property
    def _max_length(self) -> int:
        return min(self.config.max_length, self.target.longest_run)

    @property
    def _batch_tokens(self) -> int:
        return self.config.batch_tokens or pass_tokens(self.target.device.type, self.target.hidden_size)

    def _reduce_vocabulary(self) -> Tensor | None:
        """Reduce the draft's vocabulary to the most frequent tokens; return how often each token occurs.

        Tokens are counted in the texts that are learnt first. Return None, without counting, if the draft has the whole
        vocabulary, or if nothing is learnt and the options set no size.
        """
        size = self.draft.config.draft_vocab_size
        if size is None or (self.config.only_fits and "draft_vocab_size" not in self.config.draft):
            return None
        first = first_batches(self.batches.epoch(), _COUNTED_TOKENS)
        samples = (Sample(batch.tokens, batch.predicted_mask) for batch in first)
        occurrences = token_counts(samples, self.target.vocab_size)
        self.draft.reduce_vocabulary(frequent_tokens(occurrences, size))
        return occurrences

    def _stored_features(self) -> Any:
        """Return the function that reads the target's states from a feature store; None if the target is run."""
        if not isinstance(self.texts, FeatureStore):
            return None
        check_store(self.texts, self.target, self.draft)
        return partial(self.texts.features, hidden_state=self.draft.config.hidden_state)


def _peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes: allocated on the GPU, or of the whole process on a CPU; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
