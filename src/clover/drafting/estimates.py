"""Running estimates of what a candidate costs and of how much of it is accepted.

Both are a product of two factors. The machine's speed and the text's difficulty change quickly, are the same for all
candidates, and are measured by whatever runs; how candidates compare changes slowly, and is measured by trials. So a
candidate that has not run for long is still judged by the present text and the present load of the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from clover.drafting.difficulty import DifficultyEstimate, Endings
from clover.drafting.hazards import LEAST_HAZARD, MOST_HAZARD, accepted_of, exposure, hazard_of, survival
from clover.drafting.tuning import PLAIN

_KEPT_CATCH_UPS, _FEWEST_POSITIONS = 5, 64  # measurements that a median is taken over, and positions of one
_KEPT = 9  # steps that a median is taken over: four slow ones in a row do not move it
_GUESSED = 3  # steps that a guess counts for
_LONGEST_MEMORY = 400.0  # rows times steps that a candidate's hazard is averaged over
# 1 were right if all tokens of a text were equally likely and no chain ended at its longest; measured (docs/auto.md).
_SHORTENING = 0.3
_LENGTH_SHARE = 1 / 16  # what one step says of how long its chains are here
_FIXED_SHARE = (
    0.1  # of what a drafted step takes beyond a plain one, whatever its depth; measured (docs/auto.md)
)
_MOST_LENGTH = 4.0  # times as long as expected, or as short


@dataclass
class _Path:
    """A candidate's, on a text of difficulty 1: how deep its trees are and its hazard per token.

    Attributes:
        depth: the mean, where depths vary.
        most: no tree is deeper.
        weight: rows times steps that speak for the hazard.
        length: how deep its trees have been of late over what the difficulty says, if that varies.
    """

    depth: float
    most: int
    varies: bool
    hazard: Endings
    weight: float
    length: float = 1.0

    def depth_at(self, difficulty: float) -> float:
        """A path ends where it has become unlikely: the harder the text, the sooner."""
        depth = self.depth * self.length / difficulty**_SHORTENING
        return min(max(depth, 1.0), float(self.most)) if self.varies else self.depth

    def learn_length(self, depth: int, difficulty: float) -> None:
        """Learn from a tree of this depth how deep they are, where that varies."""
        if self.varies and depth > 0:
            length = self.length * (depth / self.depth_at(difficulty)) ** _LENGTH_SHARE
            self.length = min(max(length, 1 / _MOST_LENGTH), _MOST_LENGTH)


@dataclass(frozen=True)
class Believed:
    """What is believed of a candidate.

    Args:
        accepted: tokens per row and step of a text of difficulty 1.
        most_depth: of its trees.
        depth: their mean depth there, if it varies from step to step.
    """

    accepted: float
    most_depth: int
    depth: float | None = None


class AcceptanceEstimate:
    """Tokens per row and step of each candidate, from one difficulty of the text for all of them.

    A path ends at each token with the candidate's hazard times the difficulty: so a deep tree loses more on a hard text
    than a shallow one, unless it ends the sooner where the draft is unsure. Either factor is the number of paths that
    ended over the hazard that they were exposed to, the likeliest value for paths that may also reach the end of their
    tree. `DifficultyEstimate` says what is averaged over for the difficulty.

    Args:
        candidates: what is believed of each.
        weight: rows times steps that speak for the accepted tokens.
    """

    def __init__(
        self,
        candidates: Mapping[str, Believed],
        weight: float,
    ):
        self._spread = usual = 0.0
        self._paths: dict[str, _Path] = {}
        for name, one in candidates.items():
            depth = min(max(one.depth or one.most_depth, 1.0), float(one.most_depth))
            hazard = hazard_of(one.accepted, depth, usual)
            ended = weight * (1 - survival(hazard, depth, usual))
            hazards = Endings(ended, ended / hazard)
            self._paths[name] = _Path(depth, one.most_depth, one.depth is not None, hazards, weight)
        exposed = fmean(path.hazard.ended / path.weight for path in self._paths.values())
        self._difficulty = DifficultyEstimate(exposed, lambda at: 1.0)
        self._temperature: float | None = None
        self._tokens: dict[
            str, float
        ] = {}  # as long as nothing changes: each step asks for the same many times

    def enter(self, temperature: float, rows: Sequence[int]) -> None:
        """Go on with these rows, of this temperature in the mean; each is known by a number that no other row has."""
        before = self._difficulty.ratio
        self._difficulty.enter(temperature, rows)
        if temperature != self._temperature:
            self._temperature = temperature
            self._tokens.clear()
        elif self._difficulty.ratio != before:
            self._tokens.clear()

    def tokens(self, name: str) -> float:
        """Expected tokens per row and step, the bonus token included; 1 for plain steps."""
        if name not in self._tokens:
            self._tokens[name] = self._expected(name)
        return self._tokens[name]

    def stretch(self, name: str, depth: int | None = None) -> float:
        """How deep a candidate's trees are, over how deep they are on a text of difficulty 1.

        Args:
            depth: of the trees that are meant; when left out what is to be expected at present.
        """
        path = self._paths.get(name)
        if path is None or not path.varies:
            return 1.0
        return (path.depth_at(self._difficulty.ratio) if depth is None else depth) / path.depth

    def observe(self, name: str, accepted: Sequence[int], depth: int) -> None:
        """Learn the text's difficulty from a step.

        Args:
            accepted: draft tokens of each row.
            depth: of the trees, where it varies.
        """
        path = self._paths[name]
        endings = self._endings(path, accepted, depth)
        hazard = path.hazard.ratio
        self._difficulty.observe([ended for ended, _ in endings], [tokens * hazard for _, tokens in endings])
        path.learn_length(depth, self._difficulty.ratio)
        self._tokens.clear()

    def compare(self, name: str, accepted: Sequence[int], depth: int) -> None:
        """Learn a candidate's hazard from a step, by the difficulty that another one's steps have given."""
        path = self._paths[name]
        endings = self._endings(path, accepted, depth)
        ended, tokens = (sum(values) for values in zip(*endings, strict=True))
        weight = path.weight + len(accepted)
        kept = min(1.0, _LONGEST_MEMORY / weight)
        path.hazard.ended = kept * (path.hazard.ended + ended)
        path.hazard.exposed = kept * (path.hazard.exposed + tokens * self._difficulty.ratio)
        path.weight = kept * weight
        path.learn_length(depth, self._difficulty.ratio)
        self._tokens.clear()

    def fade(self) -> None:
        """What was seen is old now: more than another observation or two it shall not outweigh."""
        self._difficulty.fade()

    def _expected(self, name: str) -> float:
        path = self._paths.get(name)
        if path is None:
            return 1.0
        return 1.0 + accepted_of(self._hazard(path), path.depth_at(self._difficulty.ratio), self._spread)

    def _hazard(self, path: _Path) -> float:
        hazard = path.hazard.ratio * self._difficulty.ratio
        return min(max(hazard, LEAST_HAZARD), MOST_HAZARD)

    def _endings(self, path: _Path, accepted: Sequence[int], depth: int) -> list[tuple[float, float]]:
        """Whether each row's path ended before its tree did, and the tokens that it was exposed for."""
        hazard, most = self._hazard(path), depth if path.varies else path.most
        known = {
            count: (float(count < most), exposure(hazard, count, self._spread, count < most))
            for count in set(accepted)
        }
        return [known[count] for count in accepted]


class _Median:
    """The lower median of the last values, kept until another one is added: each step asks for it."""

    def __init__(self, values: Iterable[float] = ()):
        self.values = deque(values, maxlen=_KEPT)
        self._known: float | None = None

    @property
    def value(self) -> float:
        if self._known is None:
            self._known = median_low(self.values)
        return self._known

    def append(self, value: float) -> None:
        self.values.append(value)
        self._known = None


class CostEstimate:
    """Seconds per step of each candidate, of batches of about one size.

    Medians, since other processes make single steps slow, and never any fast. Where a candidate's depth varies, most of
    what a step takes beyond a plain one goes with it: `stretch` is its depth over the usual one.

    Args:
        seconds: what is known already, on a machine as fast as it was then; "plain" is a plain step.
        weight: steps that speak for it, at most 9.
    """

    def __init__(self, seconds: Mapping[str, float], weight: int):
        self._relative = {name: _Median([value] * weight) for name, value in seconds.items()}
        self._pace = _Median()

    @property
    def relative(self) -> dict[str, float]:
        """Seconds per step of usual depth of all known candidates, on one unknown scale: only ratios count."""
        return {name: median.value for name, median in self._relative.items()}

    @property
    def paced(self) -> bool:
        """Whether enough steps of late say how fast the machine is at present."""
        return len(self._pace.values) > _KEPT // 2

    @property
    def pace(self) -> float:
        """Seconds at present per unit of the scale of `relative`; `paced` says whether that is known."""
        return self._pace.value

    def observe(self, name: str, seconds: float, stretch: float = 1.0) -> None:
        """Learn the machine's speed from a step of the candidate that runs all the time."""
        if name not in self._relative:
            self._relative[name] = _Median([seconds])
        self._pace.append(seconds / self.step(name, stretch))

    def presume(self, name: str, seconds: float) -> None:
        """Take a guess for what a candidate costs that has not run yet, on the scale of `relative`."""
        self._relative[name] = _Median([seconds] * _GUESSED)

    def steps(self, stretch: Callable[[str], float]) -> dict[str, float]:
        """What a step of each known candidate costs, at a stretch of its own, on the scale of `relative`."""
        usual = self.relative
        if (plain := usual.get(PLAIN)) is None:
            return usual
        return {
            name: plain + _lengthened(stretch(name)) * (seconds - plain) for name, seconds in usual.items()
        }

    def step(self, name: str, stretch: float) -> float:
        """What a step of a known candidate costs on the scale of `relative`."""
        usual = self._relative[name].value
        plain = self._plain(usual)
        return plain + _lengthened(stretch) * (usual - plain)

    def compare(self, name: str, steps: Iterable[tuple[float, float]]) -> None:
        """Learn from a trial's steps what a candidate costs, by the speed that another one's steps have given.

        Args:
            steps: seconds and stretch of each.
        """
        for seconds, stretch in steps:
            value = seconds / self.pace
            plain = self._plain(value)
            self._relative.setdefault(name, _Median()).append(plain + (value - plain) / _lengthened(stretch))

    def interrupt(self) -> None:
        """The speed of late is not that of the steps to come."""
        self._pace = _Median()

    def _plain(self, otherwise: float) -> float:
        return self._relative[PLAIN].value if PLAIN in self._relative else otherwise


def _lengthened(stretch: float) -> float:
    """How much more a step of other depth takes beyond a plain one."""
    return _FIXED_SHARE + (1 - _FIXED_SHARE) * stretch


class CatchUpEstimate:
    """What the draft takes for each position of a row that it has not taken in.

    The lower median of the last few measurements; 0 before the second one, for anything may have slowed the first.
    """

    def __init__(self):
        self._seconds: deque[float] = deque(maxlen=_KEPT_CATCH_UPS)

    @property
    def seconds(self) -> float:
        return median_low(self._seconds) if len(self._seconds) > 1 else 0.0

    def observe(self, positions: int, seconds: float) -> None:
        """Learn from what `positions` of all rows together took; few of them say nothing."""
        if positions >= _FEWEST_POSITIONS:
            self._seconds.append(seconds / positions)
