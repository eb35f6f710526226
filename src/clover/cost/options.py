"""What the user of `clover cost` chooses, checked before any time is spent on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from clover.cost.breakeven import Prices
from clover.drafts.loading import trainable_system
from clover.errors import UserError
from clover.report.output import check_outputs
from clover.report.provenance import command_line
from clover.tree import TreeShape, parse_tree


@dataclass(frozen=True)
class CostOptions:
    """A draft system on a target, or a trained draft; target, dtype and device are those of `clover.load`.

    Args:
        prompts: files with prompts, see `clover.data.tasks`; the embedded development prompts when left out.
        draft: a trained draft, whose sizes are used; without it a draft of `system` with random weights is made.
        system: the draft system.
        draft_vocabulary: tokens that the new draft proposes from; all of the target's if None.
        trees: static trees, as `parse_tree` reads them; chains and the draft's own tree when left out.
        batch_sizes: texts that run together.
        taus: acceptance lengths to predict the speed-up at.
        minutes: length of the training; that of the trained draft's record when left out.
        price, serving_price: money per hour of the machine that trains, and of the one that decodes.
        max_new_tokens: per text.
        max_minutes: time for all of it, shared by the batch sizes.
        json: file for the numbers, if wanted.
    """

    prompts: tuple[str, ...] = ()
    target: str | None = None
    draft: str | None = None
    system: str = "recall"
    draft_vocabulary: int | None = None
    trees: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 4, 16)
    taus: tuple[float, ...] = ()
    minutes: float | None = None
    price: float | None = None
    serving_price: float | None = None
    max_new_tokens: int = 128
    max_minutes: float = 1.0
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    json: Path | None = None

    @property
    def command(self) -> str:
        """The command line that chooses the same.

        >>> CostOptions(draft="d", price=2.5, taus=(3.0,)).command
        'clover cost --draft d --tau 3.0 --price 2.5'
        """
        flags = {"trees": "tree", "batch_sizes": "batch-size", "taus": "tau"}
        return command_line("cost", self, files="prompts", renamed=flags)

    @property
    def prices(self) -> Prices:
        """The two prices."""
        return Prices(self.price, self.serving_price)

    @property
    def shapes(self) -> list[TreeShape]:
        """The trees that were named.

        Raises:
            UserError: one of them has another shape at every step, so that its cost depends on the draft's weights.
        """
        found = []
        for name in self.trees:
            shape = parse_tree(name)
            if not isinstance(shape, TreeShape):
                raise UserError(f"{name} has another shape at every step; give static trees, such as chain:4")
            found.append(shape)
        return found

    def check(self) -> None:
        """Raise a UserError, before any time is spent, for what does not go together."""
        if not self.draft:
            trainable_system(self.system)
        elif self.draft_vocabulary is not None:
            raise UserError(
                f"{self.draft} has its vocabulary; --draft-vocabulary is for a draft yet to be made"
            )
        for name, values, least in (("batch_size", self.batch_sizes, 1), ("tau", self.taus, 1)):
            for value in values:
                if not least <= value < math.inf:
                    raise UserError(f"{name} is {value:g}; it must be at least {least}")
        for name, value in (("minutes", self.minutes), ("max_minutes", self.max_minutes)):
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} is {value:g}; it must be more than 0")
        _ = self.prices, self.shapes
        check_outputs(json=self.json)
