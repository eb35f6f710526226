"""What reports call a draft."""

import pytest

from clover.drafts.clover2 import Clover2Config
from clover.drafts.config import DraftConfig
from clover.drafts.recall import RecallConfig
from clover.measure.report.words import draft_kind


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (RecallConfig(embedding_scale=7.4, draft_vocab_size=20), "Recall (ours)"),
        (Clover2Config(num_heads=3), "Clover-2 (paper)"),
        (
            Clover2Config(num_augmenting_layers=1, projector_embedding=False),
            "Clover-2 (paper), num augmenting layers 1, projector embedding False",
        ),
    ],
)
def test_an_ablation_is_not_called_the_system_alone(config: DraftConfig, kind: str) -> None:
    assert draft_kind(config) == kind
