"""Draft systems, one file each, on the interface of `clover.drafts.base`."""

from clover.drafts.base import DraftModel
from clover.drafts.clover1 import Clover1Draft
from clover.drafts.clover2 import Clover2Draft
from clover.drafts.config import LossConfig, PaperRecipe
from clover.drafts.eagle import EagleDraft
from clover.drafts.eagle3 import Eagle3Draft
from clover.drafts.hydra import HydraDraft
from clover.drafts.loading import load_draft, load_unbound
from clover.drafts.lookup import LookupDraft
from clover.drafts.medusa import MedusaDraft
from clover.drafts.recall import RecallDraft
from clover.drafts.session import DraftSession

__all__ = [
    "Clover1Draft",
    "Clover2Draft",
    "DraftModel",
    "DraftSession",
    "Eagle3Draft",
    "EagleDraft",
    "HydraDraft",
    "LookupDraft",
    "LossConfig",
    "MedusaDraft",
    "PaperRecipe",
    "RecallDraft",
    "load_draft",
    "load_unbound",
]
