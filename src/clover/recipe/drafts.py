"""The embedded drafts: Clover-1, Clover-2 and Recall, each by the best recipe that is known here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from clover.api import load
from clover.data import Sample
from clover.drafts.loading import trainable_system
from clover.files import read_json, write_json, written
from clover.recipe.text import WINDOW, corpus_windows, learnt_tokens
from clover.recipe.tree import likely_paths
from clover.report.provenance import Provenance
from clover.target import TargetModel
from clover.train import TrainConfig, checkpoint_path, train

# Shares of the drafts' minutes. Clover-1 has three heads and one augmenting layer, so it is done first (docs/log.md).
SYSTEMS = {"clover1": 0.25, "clover2": 0.4, "recall": 0.35}
_LR, _BATCH_TOKENS = 2e-3, 512  # small steps learn more from the same text (docs/log.md)
_TREE_NODES = 8  # the fastest size on two CPU cores (`clover tune`)


@dataclass(frozen=True)
class DraftFacts:
    """How a draft was trained: texts and tokens that the target wrote, tokens of the corpus beside them, and so on.

    Attributes:
        seen: tokens of all training steps.
        accuracy: per head, on texts that were held out.
    """

    system: str
    texts: int
    tokens: int
    corpus_tokens: int
    steps: int
    seen: int
    minutes: float
    parameters: int
    accuracy: list[float]
    made: str
    command: str


def train_draft(
    system: str,
    target: TargetModel,
    texts: Sequence[Sample],
    corpus: Tensor,
    work: Path,
    minutes: float,
    command: str,
    console: Console,
) -> DraftFacts:
    """Train one draft on what the target wrote, and as many tokens of the corpus; it lies in `work / system` then.

    Args:
        corpus: Short [T], the corpus as one stream of tokens.
        work: a run that was interrupted goes on there; one that has ended is not run again.

    Raises:
        KeyboardInterrupt: a signal ended the run; it can go on.
    """
    finished, facts = work / system, work / f"{system}.json"
    if finished.exists() and facts.exists():
        return DraftFacts(**read_json(facts))
    made, tokens = trainable_system(system), learnt_tokens(texts)
    config = _config(system, finished, minutes)
    torch.manual_seed(0)
    draft = made.from_target(target)
    samples = [*texts, *corpus_windows(corpus, tokens)]
    result = train(config, target, samples, draft, resume=checkpoint_path(config).exists(), console=console)
    if not result.finished:
        raise KeyboardInterrupt
    found = DraftFacts(
        system=system,
        texts=len(texts),
        tokens=tokens,
        corpus_tokens=tokens,
        steps=result.steps,
        seen=result.tokens,
        minutes=round(result.seconds / 60, 1),
        parameters=draft.num_parameters(),
        accuracy=[] if result.validation is None else result.validation["accuracy"],
        made=made_here(target.device, target.dtype),
        command=command,
    )
    write_json(facts, asdict(found))
    return found


def _config(system: str, output: Path, minutes: float) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        target="the embedded target",
        data=("text written by the target", "corpus"),
        system=system,
        max_length=WINDOW,
        batch_tokens=_BATCH_TOKENS,
        max_minutes=minutes,
        lr=_LR,
        dtype="bf16",
        loss=trainable_system(system).default_loss,
    )


def keep_draft(trained: Path, output: Path, target: Path, prompts: Sequence[str], device: str) -> None:
    """Copy a trained draft and name the best tree of a few nodes for these prompts, greedy and sampled, in it."""
    with written(output):
        shutil.copytree(trained, output, ignore=shutil.ignore_patterns("training_*"))
    model = load(target, output, method="draft", dtype="float32", device=device)
    requests = [model.request(p, max_new_tokens=128, temperature=t) for p in prompts for t in (0.0, 0.8)]
    tree = likely_paths(model.engine, requests)[:_TREE_NODES]
    write_json(output / "config.json", read_json(output / "config.json") | {"tree": tree})


def made_here(device: torch.device, dtype: torch.dtype) -> str:
    """Date, machine and versions, for the card."""
    here = Provenance.here("clover recipe", device, dtype)
    return f"{here.date[:10]}, {here.machine}, Python and PyTorch {here.versions['python']}, {here.versions['torch']}"
