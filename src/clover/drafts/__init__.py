"""Draft systems, one file each, on the interface of `clover.drafts.base`."""

from clover.drafts.base import DraftModel, DraftSession
from clover.drafts.clover1 import Clover1Config, Clover1Draft
from clover.drafts.clover2 import Clover2Config, Clover2Draft
from clover.drafts.config import LossConfig, PaperRecipe
from clover.drafts.eagle import EagleConfig, EagleDraft
from clover.drafts.eagle3 import Eagle3Config, Eagle3Draft
from clover.drafts.hydra import HydraConfig, HydraDraft
from clover.drafts.loading import load_draft
from clover.drafts.lookup import LookupConfig, LookupDraft
from clover.drafts.medusa import MedusaConfig, MedusaDraft
from clover.drafts.recall import RecallConfig, RecallDraft

__all__ = [
    "Clover1Config",
    "Clover1Draft",
    "Clover2Config",
    "Clover2Draft",
    "DraftModel",
    "DraftSession",
    "Eagle3Config",
    "Eagle3Draft",
    "EagleConfig",
    "EagleDraft",
    "HydraConfig",
    "HydraDraft",
    "LookupConfig",
    "LookupDraft",
    "LossConfig",
    "MedusaConfig",
    "MedusaDraft",
    "PaperRecipe",
    "RecallConfig",
    "RecallDraft",
    "load_draft",
]
