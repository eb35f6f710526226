"""Growing token trees from a draft: one file per way to do it, on the interface of `clover.drafting.base`."""

from clover.drafting.base import Drafter
from clover.drafting.static import StaticDrafter

__all__ = ["Drafter", "StaticDrafter"]
