"""What drafts: one file per rule for token trees, each known to `parse_tree` once it is imported here."""

from importlib import import_module
from pkgutil import iter_modules

from clover.drafting.auto import AutoTree as AutoTree
from clover.drafting.bandit import AutoPolicy as AutoPolicy
from clover.drafting.base import CommittedInput as CommittedInput
from clover.drafting.base import Drafter as Drafter
from clover.drafting.base import DraftInput as DraftInput
from clover.drafting.base import FixedPolicy as FixedPolicy
from clover.drafting.base import Policy as Policy
from clover.drafting.base import StepOutcome as StepOutcome
from clover.drafting.base import UpcomingStep as UpcomingStep
from clover.drafting.budget import BudgetDrafter as BudgetDrafter
from clover.drafting.budget import BudgetTree as BudgetTree
from clover.drafting.chain import ConfidentChain as ConfidentChain
from clover.drafting.chain import ConfidentDrafter as ConfidentDrafter
from clover.drafting.drawn import DrawnDrafter as DrawnDrafter
from clover.drafting.drawn import DrawnTree as DrawnTree
from clover.drafting.plain import PLAIN as PLAIN
from clover.drafting.plain import PLAIN_DRAFTER as PLAIN_DRAFTER
from clover.drafting.plain import PlainDrafter as PlainDrafter
from clover.drafting.plain import PlainTree as PlainTree
from clover.drafting.prompt_lookup import LookupDrafter as LookupDrafter
from clover.drafting.prompt_lookup import LookupTree as LookupTree
from clover.drafting.rerank import RerankDrafter as RerankDrafter
from clover.drafting.rerank import RerankTree as RerankTree
from clover.drafting.static import OwnTree as OwnTree
from clover.drafting.static import StaticDrafter as StaticDrafter
from clover.drafting.static import StaticTree as StaticTree
from clover.drafting.static import known_tokens as known_tokens
from clover.drafting.static import own_shape as own_shape
from clover.drafting.tree import Tree as Tree
from clover.drafting.tree import parse_tree as parse_tree

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
