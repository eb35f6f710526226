"""Draft systems, one file each, on the interface of `clover.drafts.base`.

Every module of this package is imported, so a new system needs only a new file here.
"""

from importlib import import_module
from pkgutil import iter_modules

from clover.drafts.base import DraftModel as DraftModel
from clover.drafts.clover1 import Clover1Draft as Clover1Draft
from clover.drafts.clover2 import Clover2Draft as Clover2Draft
from clover.drafts.eagle import EagleDraft as EagleDraft
from clover.drafts.eagle3 import Eagle3Draft as Eagle3Draft
from clover.drafts.hydra import HydraDraft as HydraDraft
from clover.drafts.loading import check_usable as check_usable
from clover.drafts.loading import load_draft as load_draft
from clover.drafts.loading import load_unbound as load_unbound
from clover.drafts.loading import load_usable as load_usable
from clover.drafts.medusa import MedusaDraft as MedusaDraft
from clover.drafts.recall import RecallDraft as RecallDraft
from clover.drafts.session import DraftSession as DraftSession
from clover.drafts.training import LossConfig as LossConfig
from clover.drafts.training import TrainingDefaults as TrainingDefaults

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
