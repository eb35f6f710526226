"""Format numbers and durations for people."""

from collections.abc import Collection


def percent(share: float | None) -> str:
    """Format a share in percent, None as "–".

    >>> percent(0.734), percent(None)
    ('73 %', '–')
    """
    return "–" if share is None else f"{100 * share:.0f} %"


def times(factor: float | None) -> str:
    """Format a factor, None as "–".

    >>> times(2.5), times(None)
    ('2.50×', '–')
    """
    return "–" if factor is None else f"{factor:.2f}×"


def rate(value: float) -> str:
    """Format a speed with at least three digits.

    >>> rate(1.666), rate(24.04), rate(314.2)
    ('1.67', '24.0', '314')
    """
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def number_of(count: int, noun: str) -> str:
    """Format a number of things.

    >>> number_of(1, "prompt"), number_of(3, "round")
    ('1 prompt', '3 rounds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def left_out(problems: Collection[str], number: int, noun: str = "text") -> str:
    """Say how many of a number of texts cannot be used, and why the first cannot; "" if all can.

    >>> left_out(["a.jsonl, line 2: no text"], 3)
    'left out 1 of 3 texts read; the first: a.jsonl, line 2: no text'
    """
    loud = "MORE THAN HALF CANNOT BE USED: " if 2 * len(problems) > number else ""
    line = f"{loud}left out {len(problems):,} of {number_of(number, noun)} read"
    return f"{line}; the first: {next(iter(problems))}" if problems else ""


def duration(seconds: float) -> str:
    """Format seconds as a readable duration.

    >>> duration(3.2), duration(75), duration(7300)
    ('3 s', '1:15 min', '2:01 h')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def count(number: float) -> str:
    """Format a large number with a unit.

    >>> count(950), count(31_400), count(3_140_000), count(2.5e9)
    ('950', '31.4 k', '3.1 M', '2.5 G')
    """
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.1f}".removesuffix(".0") + name
    return f"{number:.0f}"


def mode(temperature: float) -> str:
    """Describe how tokens are chosen at a temperature.

    >>> mode(0.0), mode(0.8)
    ('greedy', 'sampled at T = 0.8')
    """
    return "greedy" if temperature == 0 else f"sampled at T = {temperature:g}"


def shortened(name: str) -> str:
    """Return a name with each line cut to at most 52 characters."""
    return "\n".join(line if len(line) <= 52 else line[:51] + "…" for line in name.split("\n"))
