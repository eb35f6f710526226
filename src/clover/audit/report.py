"""The report of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from clover.audit.distribution import ALARM
from clover.audit.findings import Difference, Findings
from clover.audit.judge import SAFETY
from clover.measure.report.output import Report
from clover.measure.report.provenance import Provenance
from clover.measure.report.table import Table

CLEAN, DEFECT = "clean", "defect"
_SHOWN = 20  # differences in the table
_NOTES = (
    (
        "near-tie",
        f"the gap is at most {SAFETY:g} times the measured rounding: another batch size does the same",
    ),
    ("off", "how far logits are off the model's own: half of them, and the worst, in units of that rounding"),
)
Name = Callable[[int | str], str]


def make_report(
    parts: Sequence[Findings],
    origin: Provenance,
    facts: Sequence[tuple[str, str]],
    name: Name,
    notes: Sequence[tuple[str, str]] = (),
) -> Report:
    """The report, whose `data` is that of --json.

    Args:
        parts: the audit, then its repetition in float32 if there was one.
        name: what people read in the place of a token.
    """
    noise, data = parts[0].noise, _to_dict(parts)
    p_value = data["sampled_p_value"]
    rounding = f"logits {noise.logits:.2g}, a difference of two {noise.pair:.2g} (root mean square)"
    places = [("rounding", f"{rounding}, measured at {noise.positions} positions in {parts[0].dtype}")]
    chance = [("p", f"{p_value:.2g}, corrected; below {ALARM:g} is a defect")] if p_value is not None else []
    return Report(
        _title(data["defects"], data["near_ties"]),
        origin,
        [*facts, *places],
        [*map(_ways, parts), *(_places(one, name) for one in parts if one.differences)],
        data=data | dict(facts),
        notes=[*(("defect", problem) for one in parts for problem in one.problems), *_NOTES, *chance, *notes],
    )


def _title(defects: int, near_ties: int) -> str:
    if defects:
        return f"Defect: output is changed ({defects} finding{'s' if defects > 1 else ''})"
    if near_ties:
        return f"Clean: output is unchanged, but for {near_ties} near-tie{'s' if near_ties > 1 else ''} of rounding"
    return "Clean: output is unchanged, token by token"


def _ways(part: Findings) -> Table:
    rows = [
        (
            way.name,
            f"{way.tokens:,}",
            f"{way.tau:.2f}" if way.tau else "–",
            str(sum(not one.defect for one in way.differences)),
            str(sum(one.defect for one in way.differences) + len(way.problems)),
            f"{way.median:.2f}" if way.median else "–",
            f"{way.worst:.2f}" if way.worst else "–",
        )
        for way in part.ways
    ]
    rows += [(f"p, {name}", "–", "–", "–", "–", "–", f"{value:.2g}") for name, value in part.p_values.items()]
    columns = ("compared", "tokens", "τ", "near-ties", "defects", "off, half", "off, worst")
    return Table(part.dtype, columns, rows, optional=("τ", "off, half"))


def _places(part: Findings, name: Name) -> Table:
    """Differences, defects first."""
    ordered = sorted(part.differences, key=lambda one: (not one.defect, one.way, one.prompt, one.position))
    rows = [
        (
            one.way,
            str(one.prompt),
            str(one.position),
            name(one.expected),
            name(one.token),
            f"{one.gap:.3g}",
            f"{one.noise:.3g}",
            "defect" if one.defect else "near-tie",
        )
        for one in ordered[:_SHOWN]
    ]
    left = len(ordered) - len(rows)
    note = f"{left} more are in the JSON file" if left else ""
    columns = ("compared", "prompt", "position", "expected", "found", "gap", "noise", "is")
    return Table(f"Differences in {part.dtype}", columns, rows, note)


def _to_dict(parts: Sequence[Findings]) -> dict[str, Any]:
    defects, near_ties = sum(one.defects for one in parts), sum(one.near_ties for one in parts)
    return {
        "verdict": DEFECT if defects else CLEAN,
        "tokens": sum(one.tokens for one in parts),
        "differences": sum(len(one.differences) for one in parts),
        "near_ties": near_ties,
        "defects": defects,
        "sampled_p_value": min((one.p_value for one in parts if one.p_value is not None), default=None),
        "parts": [
            {
                "dtype": part.dtype,
                "rounding": asdict(part.noise),
                "ways": [
                    vars(way) | {"differences": list(map(_plain, way.differences))} for way in part.ways
                ],
                "p_values": part.p_values,
                "problems": part.problems,
            }
            for part in parts
        ],
    }


def _plain(one: Difference) -> dict[str, Any]:
    """For JSON, where what is no finite number is null."""
    names = ("way", "prompt", "position", "expected", "token", "gap", "noise", "defect", "exact_gap")
    values = {name: getattr(one, name) for name in names}
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in values.items()
    }
