"""After how many generated tokens a training has paid for itself.

Training costs T · p_train; each token saves (t_plain - t_plain / s) · p_serve, s being the speed-up. So

    n* = T · (p_train / p_serve) / (t_plain · (1 - 1/s))
"""

from dataclasses import dataclass
from pathlib import Path

from clover.measure.report.words import duration
from clover.train.record import RECORD_FILE, read_record

_HOUR = 3600.0


@dataclass(frozen=True)
class TrainingCost:
    """What a training takes, and money per hour of the machine that trains and of the one that decodes.

    Without both an hour of either counts alike. `start_from` is a draft that the training went on from; what that took
    is not in `seconds`.
    """

    seconds: float
    price: float | None = None
    serving_price: float | None = None
    start_from: str | None = None

    @property
    def words(self) -> str:
        """Time and money, as far as known.

        >>> TrainingCost(90, start_from="first").words
        '1:30 min; it went on from first, whose training is not counted'
        """
        words = duration(self.seconds)
        if self.price is not None:
            words += f", {self.price * self.seconds / _HOUR:.2f} at {self.price:g} per hour"
        if self.start_from is not None:
            words += f"; it went on from {self.start_from}, whose training is not counted"
        return words

    def paying_tokens(self, plain_seconds: float, speedup: float) -> float | None:
        """Generated tokens after which it has paid for itself, by plain decoding's seconds per token; or None.

        >>> TrainingCost(3600).paying_tokens(0.01, 2.0), TrainingCost(3600, 1.0, 2.0).paying_tokens(0.01, 2.0)
        (720000.0, 360000.0)
        """
        if speedup <= 1:
            return None
        ratio = self.price / self.serving_price if self.price and self.serving_price else 1.0
        return ratio * self.seconds / (plain_seconds * (1 - 1 / speedup))


def recorded_cost(draft: str) -> TrainingCost | None:
    """What a draft's last training took, by the record in its directory, if any; UserError if that is damaged."""
    if not Path(draft, RECORD_FILE).is_file():
        return None
    record = read_record(draft)
    seconds = record.config.writing_seconds + record.result.seconds
    return TrainingCost(seconds, start_from=record.config.start_from)
