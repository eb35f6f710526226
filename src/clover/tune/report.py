"""Everything a tuning found, with what is needed to find it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from clover.drafting.tuning import PLAIN, Tuning
from clover.provenance import revision
from clover.tree import parse_tree
from clover.tune.search import Prediction
from clover.tune.trials import Trial


@dataclass(frozen=True)
class Tried:
    """One candidate at one batch size, as foretold and as measured.

    Args:
        predicted: None for plain decoding and for trees that are grown anew at each step.
        plain: the trial of plain decoding at the same batch size.
    """

    trial: Trial
    predicted: Prediction | None
    plain: Trial

    @property
    def speedup(self) -> float:
        """Over plain decoding, measured."""
        return self.trial.speed / self.plain.speed

    @property
    def ideal_share(self) -> float:
        """Of the speed-up τ · T_plain / T_verify, which a step would have that is nothing but the target's pass."""
        plain_step = self.plain.seconds / self.plain.steps
        ideal = self.trial.tau * plain_step * self.trial.steps / self.trial.verify_seconds
        return self.speedup / ideal

    @property
    def draft_share(self) -> float:
        """Of the step, for drafting."""
        return self.trial.draft_seconds / self.trial.seconds

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        trial, predicted = self.trial, self.predicted
        return {
            "tree": trial.tree,
            "nodes": trial.nodes,
            "tau": trial.tau,
            "tokens_per_second": trial.speed,
            "step_seconds": trial.seconds / trial.steps,
            "speedup": self.speedup,
            "ideal_share": self.ideal_share,
            "draft_share": self.draft_share,
            "timed_steps": trial.timed,
            "predicted_tau": None if predicted is None else predicted.candidate.tau,
            "predicted_tokens_per_second": None if predicted is None else predicted.tokens_per_second,
            "predicted_speedup": None if predicted is None else predicted.speedup,
        }


@dataclass(frozen=True)
class TuneReport:
    """The figures of one tuning; `to_dict` is what `--json` writes.

    Args:
        draft: as the user named it.
        system: the draft's model type.
        prompts, new_tokens: what acceptance was counted on.
        tried: per batch size, the fastest candidate first.
        revision: of the checkout that Clover ran from, None without one.
    """

    command: str
    draft: str
    system: str
    prompts: int
    new_tokens: int
    temperature: float
    seconds: float
    tuning: Tuning
    tried: dict[int, tuple[Tried, ...]]
    revision: str | None = field(default_factory=revision)

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        tuning = self.tuning
        names = ("command", "draft", "system", "prompts", "new_tokens", "temperature", "seconds", "revision")
        places = ("target", "device", "dtype", "machine", "threads", "date", "versions")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: getattr(tuning, name) for name in places},
            "verify": [asdict(cost) for cost in tuning.verify],
            "batch_sizes": [
                {"batch_size": size, "tried": [one.to_dict() for one in tried]}
                for size, tried in self.tried.items()
            ],
        }


def join(trials: list[Trial], predictions: list[Prediction]) -> tuple[Tried, ...]:
    """Trials of one batch size with what was foretold of them."""
    foretold = {one.candidate.spec: one for one in predictions}
    plain = next(trial for trial in trials if trial.tree == PLAIN)
    return tuple(Tried(trial, foretold.get(trial.tree), plain) for trial in trials)


def tree_label(tree: str) -> str:
    """A tree for people; long lists of paths as nodes per depth.

    >>> tree_label("plain"), tree_label("chain:3"), tree_label("paths:0,1,00,01,000")
    ('plain decoding', 'chain:3', 'static 2+2+1')
    """
    if not tree.startswith("paths:"):
        return "plain decoding" if tree == PLAIN else tree
    shape: Any = parse_tree(tree)
    return "static " + "+".join(str(len(level.nodes)) for level in shape.levels)
