"""Growing token trees: one file per way to do it, on the interface of `clover.drafting.base`, and the choice of one."""

from clover.drafting.auto import AutoPolicy as AutoPolicy
from clover.drafting.auto import make_policy as make_policy
from clover.drafting.base import PLAIN_DRAFTER as PLAIN_DRAFTER
from clover.drafting.base import CommittedInput as CommittedInput
from clover.drafting.base import Drafter as Drafter
from clover.drafting.base import DraftInput as DraftInput
from clover.drafting.base import FixedPolicy as FixedPolicy
from clover.drafting.base import PlainDrafter as PlainDrafter
from clover.drafting.base import Policy as Policy
from clover.drafting.base import Running as Running
from clover.drafting.base import StepOutcome as StepOutcome
from clover.drafting.budget import BudgetDrafter as BudgetDrafter
from clover.drafting.drawn import DrawnDrafter as DrawnDrafter
from clover.drafting.factory import make_drafter as make_drafter
from clover.drafting.prompt_lookup import LookupDrafter as LookupDrafter
from clover.drafting.rerank import RerankDrafter as RerankDrafter
from clover.drafting.static import ConfidentDrafter as ConfidentDrafter
from clover.drafting.static import StaticDrafter as StaticDrafter
from clover.drafting.static import known_tokens as known_tokens
from clover.drafting.static import own_tree as own_tree
