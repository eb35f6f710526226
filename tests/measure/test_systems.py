"""What reports call a draft, and in which color figures draw it."""

import pytest

from clover.drafts.base import SYSTEMS
from clover.drafts.clover2 import Clover2Config
from clover.drafts.config import DraftConfig
from clover.drafts.recall import RecallConfig
from clover.measure.systems import draft_kind, system_color, system_name


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


def test_systems_differ_in_color_and_name() -> None:
    names = ("plain", "transformers", *SYSTEMS)
    assert len({system_color(name) for name in names}) == len(names)
    assert len({system_name(name) for name in names}) == len(names)


def test_other_names_stay_as_they_are_and_differ_in_color() -> None:
    assert system_name("mine") == "mine"
    assert system_color("mine", 0) != system_color("mine", 1)
