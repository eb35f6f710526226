"""Everything an evaluation found, with what is needed to find it again."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clover.evaluate.acceptance import SettingResult
from clover.evaluate.accuracy import HeadAccuracy
from clover.provenance import revision, versions

SYSTEM_LABELS = {
    "clover1": "Clover-1",
    "clover2": "Clover-2",
    "recall": "Clover-Recall",
    "medusa": "Medusa",
    "eagle": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "hydra": "Hydra",
    "lookup": "prompt lookup",
}


@dataclass(frozen=True)
class EvaluationReport:
    """The figures of one draft; `to_dict` is what `--json` writes.

    Args:
        system: the draft's model type.
        machine: name of the GPU or CPU.
        texts: what the heads were measured on, in words.
        left_out: prompts that were too long for the target's context.
        heads: accuracy of the heads.
        settings: acceptance, one per tree and temperature.
        revision: of the checkout that Clover ran from, None without one.
    """

    command: str
    target: str
    draft: str
    system: str
    device: str
    machine: str
    dtype: str
    prompts: int
    left_out: int
    max_new_tokens: int
    texts: str
    seconds: float
    heads: HeadAccuracy
    settings: tuple[SettingResult, ...]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    versions: dict[str, str] = field(default_factory=versions)
    revision: str | None = field(default_factory=revision)

    @property
    def label(self) -> str:
        """The draft system's name for people."""
        return SYSTEM_LABELS.get(self.system, self.system)

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        plain = {name: value for name, value in vars(self).items() if name not in ("heads", "settings")}
        return {
            **plain,
            "heads": self.heads.to_dict(),
            "settings": [setting.to_dict() for setting in self.settings],
        }


def setting_label(setting: SettingResult) -> str:
    """A tree and a temperature, in short.

    >>> setting_label(SettingResult("trees/wide.json", 9, 1.0, (), (), ()))
    'wide.json, T 1'
    """
    return f"{Path(setting.tree).name}, T {setting.temperature:g}"
