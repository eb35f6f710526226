"""Draft systems, one file each, on the interface of `clover.drafts.base`."""

from clover.drafts.base import DraftModel, DraftSession
from clover.drafts.clover2 import Clover2Config, Clover2Draft
from clover.drafts.config import LossConfig
from clover.drafts.loading import load_draft

__all__ = ["Clover2Config", "Clover2Draft", "DraftModel", "DraftSession", "LossConfig", "load_draft"]
