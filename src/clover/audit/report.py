"""The report of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from clover.audit.distribution import ALARM
from clover.audit.findings import Difference, Findings
from clover.audit.judge import SAFETY
from clover.report.output import Report
from clover.report.provenance import Provenance
from clover.report.table import Table

CLEAN, DEFECT = "clean", "defect"
_SHOWN = 20  # differences in the table
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
    main = parts[0]
    defects, near_ties = (sum(getattr(one, what) for one in parts) for what in ("defects", "near_ties"))
    verdict = DEFECT if defects else CLEAN
    p_values = [one.p_value for one in parts if one.p_value is not None]
    data = {
        "verdict": verdict,
        "tokens": sum(one.tokens for one in parts),
        "differences": sum(len(one.differences) for one in parts),
        "near_ties": near_ties,
        "defects": defects,
        "sampled_p_value": min(p_values, default=None),
        **dict(facts),
        "parts": [_to_dict(one) for one in parts],
    }
    rounding = f"logits {main.noise.logits:.2g}, a difference of two {main.noise.pair:.2g} (root mean square)"
    return Report(
        _title(verdict, defects, near_ties),
        origin,
        [*facts, ("rounding", f"{rounding}, measured at {main.noise.positions} positions in {main.dtype}")],
        [*(_ways(one) for one in parts), *(_places(one, name) for one in parts if one.differences)],
        data=data,
        notes=[
            *(("defect", problem) for one in parts for problem in one.problems),
            (
                "near-tie",
                f"the gap is at most {SAFETY:g} times the measured rounding: another batch size does the same",
            ),
            (
                "off",
                "how far logits are off the model's own, half of them and the worst, in units of that rounding",
            ),
            *(
                (("p", f"below {ALARM:g} is a defect: the chance of an alarm without one"),)
                if p_values
                else ()
            ),
            *notes,
        ],
    )


def _title(verdict: str, defects: int, near_ties: int) -> str:
    if verdict == DEFECT:
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
    columns = ("compared", "prompt", "token", "expected", "found", "gap", "noise", "is")
    return Table(f"Differences in {part.dtype}", columns, rows, note)


def _to_dict(part: Findings) -> dict[str, Any]:
    return {
        "dtype": part.dtype,
        "rounding": asdict(part.noise),
        "ways": [
            {
                "name": way.name, "tokens": way.tokens, "tau": way.tau, "worst": way.worst, "median": way.median,
                "problems": way.problems, "differences": [_plain(one) for one in way.differences],
            }
            for way in part.ways
        ],
        "p_values": part.p_values,
        "problems": part.problems,
    }  # fmt: skip


def _plain(one: Difference) -> dict[str, Any]:
    """For JSON, where an infinite gap is null."""
    names = ("way", "prompt", "position", "expected", "token", "gap", "noise", "defect", "exact_gap")
    values = {name: getattr(one, name) for name in names}
    return {name: None if value in (inf, -inf) else value for name, value in values.items()}
