"""A training run from its first step, or from a checkpoint, to the finished draft.

A run that is bounded by steps alone gives the same weights to the bit, however often it was stopped and resumed.
"""

import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from torch import Tensor

from clover.data import (
    Batch,
    Batches,
    Position,
    Record,
    Sample,
    SampleTexts,
    Texts,
    held_out_of,
    token_counts,
)
from clover.data.batching import Side, first_batches
from clover.data.features import FeatureStore, check_store, hidden_scale
from clover.drafts import DraftModel
from clover.drafts.vocabulary import frequent_tokens, worthwhile_size
from clover.errors import UserError
from clover.files import check_output_directory, locked_directory, output_directory, write_json
from clover.measure.report.progress import Progress
from clover.measure.report.provenance import Provenance
from clover.target import TargetModel, tensors_fingerprint, weights_fingerprint
from clover.train.checkpoint import load_checkpoint, save_checkpoint
from clover.train.config import TrainConfig
from clover.train.learner import Learner
from clover.train.losses import HeadMetrics
from clover.train.progress import Log, describe, stop_requests
from clover.train.record import LOG_FILE, RECORD_FILE
from clover.train.schedule import optimizer_name, pass_tokens, rate, spent, step_tokens
from clover.train.unfinished import (
    RunState,
    check_unfinished,
    checkpoint_path,
    clear,
    log_path,
)
from clover.validation import validated

_LOG_EVERY_SECONDS = 2.0
_FIRST_LINE_SECONDS = 3.0  # where there is no terminal
_SCALE_BATCHES, _SCALE_TOKENS = 8, 64  # tokens of each
_COUNTED_TOKENS = 2**18  # of which the most frequent are found, for a draft that proposes from a part of all
_VALIDATION_TOKENS, _VALIDATION_SHARE = (2**11, 2**15), 1 / 16  # at least, at most; of what was learnt
_CHARACTERS_PER_TOKEN = 8  # more than most texts have
_FEW_DEPTHS = 2


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Args:
        finished: False if a signal stopped it; it can be resumed.
        steps, tokens, seconds: of the whole run, resumed parts included; padding is not counted.
        training: the last log entry: loss, and per head distillation, regression and accuracy.
        validation: the same for held-out texts; None if there are none, or if the run was stopped.
    """

    finished: bool
    steps: int
    tokens: int
    seconds: float
    training: dict[str, Any]
    validation: dict[str, Any] | None


def train(
    config: TrainConfig,
    target: TargetModel,
    texts: Texts | Sequence[Sample],
    draft: DraftModel,
    *,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> TrainResult:
    """Train `draft` in place, and write it to `config.output` together with the options, the results and the log.

    Ctrl-C and SIGTERM end the run after the step it is in, with a checkpoint.

    Args:
        texts: the texts, or samples in memory; a part of them is held out to be measured on.
        draft: made for `target`, with its starting values. When it is finished it has the target's dtype.
        resume: go on with the unfinished run in `config.work_directory`.
        overwrite: replace an existing output directory, and discard an unfinished run.
        console: where progress is shown; standard error by default.

    Raises:
        UserError: options, data, target and draft do not fit together, the output cannot be
            written, an unfinished run is in the way or cannot be resumed, or the loss is not finite any more.
    """
    check_unfinished(config, resume, overwrite)
    check_output_directory(config.output, overwrite)
    with locked_directory(config.work_directory), Progress(console, _FIRST_LINE_SECONDS) as progress:
        progress.say("looking at the texts")
        run = _Run(config, target, texts, draft, progress)
        if resume:
            run.restore()
        else:
            run.start()
            clear(config)
        result = run.go()
        if not result.finished:
            return result
        with output_directory(config.output, overwrite) as folder:
            run.write(folder, result)
    clear(config)
    return result


class _Run:
    """A training run and where it stands."""

    def __init__(
        self,
        config: TrainConfig,
        target: TargetModel,
        texts: Texts | Sequence[Sample],
        draft: DraftModel,
        progress: Progress,
    ):
        self.progress = progress
        self.config, self.target, self.draft = config, target, draft.bind(target)
        self.target_weights = weights_fingerprint(target)
        self.texts = texts if isinstance(texts, Texts) else SampleTexts(texts)
        self.held_out = held_out_of(self.texts, config.validation_share, self._max_length)
        self.batches = self._make_batches(seed=config.seed, side=self._is_learnt)
        if (size := draft.config.draft_vocab_size) is not None:
            self.counts = token_counts(self._learnt_first(), target.vocab_size)
            draft.reduce_vocabulary(frequent_tokens(self.counts, size))
        stored = None
        if isinstance(self.texts, FeatureStore):
            check_store(self.texts, target, draft)
            stored = partial(self.texts.features, hidden_state=draft.config.hidden_state)
        self.learner = Learner(config, target, draft, stored)
        self.step = self.tokens = 0
        self.seconds = 0.0  # spent before this process
        self.entry: dict[str, Any] = {}
        torch.manual_seed(config.seed)

    def start(self) -> None:
        """Measure what the loss is relative to: on the opening of one text from each of the first batches."""
        first = [next(self.batches) for _ in range(_SCALE_BATCHES)]
        self.batches.position = Position()
        openings = (batch.opening(_SCALE_TOKENS).to(self.target.device) for batch in first)
        self.learner.scale = hidden_scale(
            (self.learner.features(b).hidden_target, b.lengths) for b in openings
        )

    def go(self) -> TrainResult:
        """Train until the budget is spent or a signal comes; leaves a checkpoint either way."""
        self.started = self.saved = self.logged = time.monotonic()
        self.logged_tokens, self.pending = self.tokens, None
        self.log = Log(log_path(self.config), self.step)
        with stop_requests() as stopped:
            self.progress.say("training")
            self.progress.begin(1.0, self._spent())  # the first texts have been read by then
            if self.texts.left_out:
                self.progress.log(self.texts.left_out)
            while not self._finished() and not stopped():
                self._take_step()
                now = time.monotonic()
                if now - self.saved >= 60 * self.config.save_every_minutes:
                    self.save()
                elif now - self.logged >= _LOG_EVERY_SECONDS:
                    self._report()
            finished = self._finished()
            self.save()
            validation = self._validate() if finished else None
        return TrainResult(finished, self.step, self.tokens, self._elapsed(), self.entry, validation)

    def save(self) -> None:
        """Write a checkpoint, after a look at loss and weights: what went wrong must not replace what was good."""
        self._report()
        if not all(bool(weight.isfinite().all()) for weight in self.learner.parameters):
            self._refuse("the weights are not finite")
        state = RunState(
            self.config.to_dict(),
            self.target_weights,
            self.target.dtype_name,
            self.target.device.type,
            self.texts.fingerprint,
            self.batches.position,
            self.step,
            self.tokens,
            self._elapsed(),
            self.learner.scale,
            self.entry,
        )
        modules, optimizers = {"draft": self.draft}, self.learner.optimizers
        save_checkpoint(checkpoint_path(self.config), modules, optimizers, asdict(state))
        self.saved = time.monotonic()

    def restore(self) -> None:
        """Take over where the checkpoint stands."""
        modules, optimizers = {"draft": self.draft}, self.learner.optimizers
        path = checkpoint_path(self.config)
        state = validated(RunState, load_checkpoint(path, modules, optimizers), str(path))
        target, texts = self.target, self.texts.fingerprint
        state.check(path, self.config, self.target_weights, target.dtype_name, target.device.type, texts)
        self.draft.bind(target)  # to the vocabulary of the checkpoint
        self.batches.position = state.position
        self.step, self.tokens, self.seconds = state.step, state.tokens, state.seconds
        self.learner.scale, self.entry = state.scale, state.entry

    def write(self, folder: Path, result: TrainResult) -> None:
        """Write the finished draft in the target's dtype, with what it came from."""
        for parameter in self.draft.parameters():
            parameter.data = parameter.data.to(self.target.dtype)
        self.draft.config.target_weights = tensors_fingerprint(self.target)
        self.draft.save_pretrained(folder)
        resources = {
            "peak_memory_bytes": _peak_memory(self.target.device),
            "checkpoint_bytes": checkpoint_path(self.config).stat().st_size,
        }
        learner, target = self.learner, self.target
        settled = {
            "lr": learner.lr,
            "optimizer": optimizer_name(self.config, type(self.draft)),
            "dtype": "bfloat16" if learner.bf16 else "float32",
            "batch_tokens": self._batch_tokens,
        }
        record = {
            "config": self.config.to_dict() | settled,
            "result": asdict(result),
            "provenance": asdict(Provenance.here("clover train", target.device, target.dtype)),
            "resources": resources,
        }
        write_json(folder / RECORD_FILE, record)
        shutil.copyfile(self.log.path, folder / LOG_FILE)

    def _make_batches(self, **options: Any) -> Batches:
        vocab_size = self.target.vocab_size
        return Batches(self.texts, self._max_length, self._batch_tokens, vocab_size=vocab_size, **options)

    def _is_learnt(self, text: Record | Sample) -> bool:
        return self.held_out is None or not self.held_out(text)

    @property
    def _max_length(self) -> int:
        return min(self.config.max_length, self.target.longest_run)

    @property
    def _batch_tokens(self) -> int:
        return self.config.batch_tokens or pass_tokens(self.target.device.type)

    def _learnt_first(self) -> Iterator[Sample]:
        """The texts that come first, as one sample per batch."""
        for batch in first_batches(self.batches.epoch(), _COUNTED_TOKENS):
            yield Sample(batch.tokens, batch.predicted_mask)

    def _next_batches(self) -> list[Batch]:
        """Those of the next step; where the texts fail, what has been learnt is saved first."""
        place, wanted = self.batches.position, step_tokens(self.config, self.tokens)
        batches: list[Batch] = []
        try:
            while not batches or sum(int(batch.lengths.sum()) for batch in batches) < wanted:
                batches.append(next(self.batches))
        except Exception:
            self.batches.position = place
            if self.step:
                self.save()
            raise
        return batches

    def _take_step(self) -> None:
        batches = self._next_batches()
        metrics = self.learner.step(batches, self._rate(), self._depths())
        self.step += 1
        self.tokens += sum(int(batch.lengths.sum()) for batch in batches)
        self.pending: HeadMetrics | None = metrics if self.pending is None else self.pending + metrics

    def _report(self) -> None:
        """Log and show what was learnt since the last time; this waits for the device."""
        if self.pending is None:
            return
        summary = self.learner.summary(self.pending)
        if not math.isfinite(loss := summary["loss"]):
            self._refuse(f"the loss is {loss}")
        now = time.monotonic()
        speed = (self.tokens - self.logged_tokens) / max(now - self.logged, 1e-9)
        place = {"step": self.step, "tokens": self.tokens, "seconds": round(self._elapsed(), 3)}
        pace = {"lr": self.learner.lr * self._rate(), "tokens_per_second": round(speed, 1)}
        self.entry = {**place, **pace, **summary}
        self.log.write(self.entry)
        self.progress.reach(self._spent(), describe(self.entry))
        self.logged, self.logged_tokens, self.pending = now, self.tokens, None

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{what} at step {self.step}; lower the learning rate ({self.learner.lr:.2g})")

    def _validate(self) -> dict[str, Any] | None:
        if self.held_out is None:
            return None
        self.progress.say("measuring on held-out texts")
        try:
            batches = list(self._held_out_batches(self.held_out))
        except UserError as error:  # what is learnt must not be lost
            self.progress.log(
                f"no held-out text can be measured, so the draft's vocabulary and copies stay as they are: {error}"
            )
            return None
        measured = self.learner.measure(self.progress.each(batches))
        summary = self.learner.summary(measured.metrics)
        self.log.write({"step": self.step, "validation": summary})
        self._fit_vocabulary(measured.hits)
        if measured.guesses is not None and "copy_shares" not in self.config.draft:
            self.draft.choose_copies(measured.guesses)
        return summary

    def _fit_vocabulary(self, hits: Tensor) -> None:
        """Leave the draft the tokens that are worth their time, by its hits on held-out texts: it knows the others."""
        if not self.config.fit_vocabulary or (known := self.draft.d2t) is None:
            return
        order = self.counts[known.cpu()].argsort(descending=True, stable=True)
        size = worthwhile_size(hits[order])
        self.draft.reduce_vocabulary(frequent_tokens(self.counts, size))

    def _held_out_batches(self, side: Side) -> Iterator[Batch]:
        """As many as are measured, in small blocks: few texts are held out, so a usual one could take all to fill."""
        least, most = _VALIDATION_TOKENS
        tokens = min(max(least, round(_VALIDATION_SHARE * self.tokens)), most)
        batches = self._make_batches(seed=0, side=side, block_size=_CHARACTERS_PER_TOKEN * tokens)
        return first_batches(batches.epoch(), tokens)

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started

    def _spent(self) -> float:
        return spent(self.config, self.step, self._elapsed(), self.batches.epochs)

    def _finished(self) -> bool:
        return self.step > 0 and self._spent() >= 1

    def _depths(self) -> int:
        """Few depths take less time, so they make more steps of a budget of minutes, and of no other."""
        depths, config = self.draft.trained_depths, self.config
        few = self.draft.few_depths_first and config.max_minutes and self._spent() < config.few_depths
        return min(_FEW_DEPTHS, depths) if few else depths

    def _rate(self) -> float:
        return rate(self.config, self._spent())


def _peak_memory(device: torch.device) -> int | None:
    """Bytes: the most that was allocated on the GPU, or of the whole process on a CPU; None where nobody counts."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
