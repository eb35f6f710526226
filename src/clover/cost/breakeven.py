"""After how many generated tokens a training has paid for itself.

Training costs T · p_train. Each token saves (t_plain - t_plain / s) · p_serve, where t_plain is the time of plain
decoding per token at the batch size of use, and s the speed-up. So

    n* = T · (p_train / p_serve) / (t_plain · (1 - 1/s))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from clover.errors import UserError
from clover.files import read_model

_HOUR = 3600.0
_RECORD = "training_config.json"  # what `clover train` leaves with a draft


@dataclass(frozen=True)
class Prices:
    """Money per hour, in any currency.

    Args:
        training: of the machine that trains; None where no price was given, and then only time counts.
        serving: of the machine that decodes; that of the other if None.
    """

    training: float | None = None
    serving: float | None = None

    def __post_init__(self) -> None:
        if self.serving is not None and self.training is None:
            raise UserError("a serving price was given but no price of training; give both, or --price alone")
        for name, price in (("price", self.training), ("serving_price", self.serving)):
            if price is not None and not 0 < price < math.inf:
                raise UserError(f"{name} is {price:g}; it must be more than 0")

    @property
    def ratio(self) -> float:
        """The price of an hour of training divided by that of an hour of decoding."""
        if self.training is None or self.serving is None:
            return 1.0
        return self.training / self.serving

    def money(self, seconds: float) -> float | None:
        """What so much training costs; None without a price."""
        return None if self.training is None else self.training * seconds / _HOUR


def paying_tokens(seconds: float, plain_seconds: float, speedup: float, ratio: float = 1.0) -> float:
    """Tokens after which a training has paid for itself; infinite where nothing is faster.

    Args:
        seconds: of training.
        plain_seconds: per token of plain decoding.
        speedup: against plain decoding.
        ratio: price of an hour of training divided by that of an hour of decoding.

    >>> paying_tokens(3600, 0.01, 2.0)
    720000.0
    """
    if speedup <= 1:
        return math.inf
    return ratio * seconds / (plain_seconds * (1 - 1 / speedup))


@dataclass(frozen=True)
class _Result:
    seconds: float


@dataclass(frozen=True)
class _Config:
    writing_seconds: float = 0.0  # before the training, for texts that the target wrote (`--regenerate`)


@dataclass(frozen=True)
class _Record:
    result: _Result
    config: _Config = field(default_factory=_Config)


def recorded_seconds(draft: str) -> float | None:
    """What a draft's training took, by the record in its directory; None where there is none.

    Raises:
        UserError: the record is damaged.
    """
    path = Path(draft) / _RECORD
    if not path.is_file():
        return None
    record = read_model(path, _Record)
    return record.config.writing_seconds + record.result.seconds
