"""The embedded drafts, Clover-1, Clover-2 and Recall; and one training of any recipe, which can be resumed."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console

from clover.api import load
from clover.data import Sample, Texts
from clover.drafts import DraftModel, load_draft
from clover.drafts.loading import find_system
from clover.engine import Engine, Request
from clover.files import raise_on_write_error, write_json
from clover.measure.ranks import RankPath, rank_texts
from clover.measure.report.provenance import Provenance
from clover.measure.timing import WRITTEN_TOGETHER, time_decoding
from clover.measure.trees import count_starts, most_frequent
from clover.target import TargetModel
from clover.train import TrainConfig, checkpoint_path, prepare, train
from clover.train.record import RecordedResult, read_record
from clover.validation import read_json
from experiments.recipes.text import learnt_tokens

# Shares of the drafts' minutes. Clover-1 has three heads and one augmenting layer, so it is done first
# (docs/development/log.md).
SYSTEMS = {"clover1": 0.25, "clover2": 0.4, "recall": 0.35}
WINDOW = 256  # tokens of a text that a draft is trained on
_TREE_NODES = 8  # the fastest size on two CPU cores (`clover tune`)


@dataclass(frozen=True)
class DraftFacts:
    """How a draft was trained.

    Attributes:
        tokens: different ones that could be learnt.
        seen: tokens of all training steps.
        accuracy: per head, on texts that were held out.
    """

    system: str
    tokens: int
    steps: int
    seen: int
    minutes: float
    parameters: int
    accuracy: list[float]


def finish_training(
    config: TrainConfig,
    target: TargetModel,
    texts: Texts | Sequence[Sample],
    draft: DraftModel,
    console: Console,
) -> RecordedResult:
    """Train a draft into `config.output`, unless it is there; an unfinished training goes on.

    Raises:
        KeyboardInterrupt: a signal ended it.
        UserError: the record of the finished training is damaged.
    """
    output = Path(config.output)
    if not output.exists():
        resume = checkpoint_path(config).exists()
        result = train(config, target, texts, draft, resume=resume, overwrite=not resume, console=console)
        if not result.finished:
            raise KeyboardInterrupt
    return read_record(output).result


def train_draft(
    system: str, target: TargetModel, texts: Sequence[Sample], output: Path, minutes: float, console: Console
) -> DraftFacts:
    """Train one draft by its best recipe; see `finish_training`."""
    config = TrainConfig(
        output=str(output),
        target="the embedded target",
        data=("text written by the target", "corpus"),
        system=system,
        max_length=WINDOW,
        batch_tokens=512,  # small steps learn more from the same text (docs/development/log.md)
        max_minutes=minutes,
        lr=2e-3,  # by which the drafts of the package learnt
        dtype="bfloat16",
        loss=find_system(system).training_defaults.loss,
    )
    config, draft = prepare(config, target)
    result = finish_training(config, target, texts, draft, console)
    return DraftFacts(
        system=system,
        tokens=learnt_tokens(texts),
        steps=result.steps,
        seen=result.tokens,
        minutes=round(result.seconds / 60, 1),
        parameters=load_draft(output, target).num_parameters(),
        accuracy=result.validation.accuracy if result.validation else [],
    )


def keep_draft(trained: Path, output: Path, target: Path, prompts: Sequence[str], device: str) -> None:
    """Copy a trained draft and name the best tree of a few nodes for these prompts, greedy and sampled, in it."""
    with raise_on_write_error(output):
        shutil.copytree(trained, output, ignore=shutil.ignore_patterns("training_*"))
    model = load(target, output, tree="own", dtype="float32", device=device)
    requests = [model.request(p, max_new_tokens=128, temperature=t) for p in prompts for t in (0.0, 0.8)]
    tree = likely_paths(model.engine, requests)[:_TREE_NODES]
    write_json(output / "config.json", read_json(output / "config.json") | {"tree": tree})


def likely_paths(engine: Engine, requests: Sequence[Request]) -> list[RankPath]:
    """Rank paths, most often accepted first; any number of them from the front is a tree (`TreeShape.from_paths`)."""
    draft = engine.draft
    assert draft is not None, "plain decoding has no tree"
    paths = rank_texts(
        draft.target, draft, requests, time_decoding(engine, requests, max_sequences=WRITTEN_TOGETHER).texts
    )
    return most_frequent(count_starts(chain.from_iterable(paths)))


def made_here(device: torch.device, dtype: torch.dtype) -> str:
    """Date, machine and versions, for the card."""
    here = Provenance.here("python -m experiments.recipes", device, dtype)
    return f"{here.date[:10]}, {here.machine}, Python and PyTorch {here.versions['python']}, {here.versions['torch']}"
