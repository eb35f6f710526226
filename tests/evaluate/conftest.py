from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clover.evaluate import EvaluationReport, GroupAcceptance, HeadAccuracy, SettingResult, Share
from clover.evaluate.kinds import TOKEN_KINDS
from clover.metrics import Acceptance
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a random target with a chat template, and of its untrained draft."""
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


def make_setting(tree: str, temperature: float) -> SettingResult:
    acceptance = Acceptance([10, 20, 10], [40, 30], 80)
    groups = (GroupAcceptance("mt_bench", 3, acceptance), GroupAcceptance("rag", 1, acceptance))
    kinds = tuple(Share(kind, 100 - 10 * i, 60 - 10 * i) for i, kind in enumerate(TOKEN_KINDS[:-1]))
    kinds += (Share(TOKEN_KINDS[-1], 0, 0),)
    return SettingResult(tree, 5, temperature, groups, kinds, (Share("1–16", 64, 48), Share("17–32", 20, 5)))


@pytest.fixture
def make_report() -> Callable[..., EvaluationReport]:
    """A report made by hand, of settings (tree, temperature), with fields replaced."""

    def make(
        settings: tuple[tuple[str, float], ...] = (("chain:2", 0.0),), **fields: Any
    ) -> EvaluationReport:
        top = torch.tensor([[50, 60, 70, 80, 90], [20, 30, 40, 50, 60]])
        heads = HeadAccuracy(torch.tensor([100, 90]), torch.tensor([100, 45]), top, top, top // 2)
        report = EvaluationReport(
            command="clover evaluate", target="targets/[one]", draft="drafts/one", system="clover2", device="cpu",
            machine="a CPU", dtype="float32", prompts=4, left_out=0, max_new_tokens=32, texts="texts", seconds=5.0,
            heads=heads, settings=tuple(make_setting(*setting) for setting in settings), date="2026-01-01",
            versions={"clover": "1"}, revision="abc",
        )  # fmt: skip
        return replace(report, **fields)

    return make
