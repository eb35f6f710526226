"""The report of an audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from clover.audit.judge import SAFETY
from clover.audit.results import AuditResult
from clover.audit.statistics import ALARM
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


def make_report(
    result: AuditResult,
    origin: Provenance,
    facts: Sequence[tuple[str, str]],
    token_text: Callable[[int | str], str],
) -> Report:
    """Return the report; its `data` is that of --json, `token_text` what people read in the place of a token."""
    rounding, data = result.rounding, _to_dict(result)
    size = f"logits {rounding.logits:.2g}, a difference of two {rounding.pair:.2g} (root mean square)"
    place = ("rounding", f"{size}, measured at {rounding.positions} positions in {result.dtype}")
    p_value = result.p_value
    chance = [("p", f"{p_value:.2g}, corrected; below {ALARM:g} is a defect")] if p_value is not None else []
    differences = [_differences(result, token_text)] if result.differences else []
    return Report(
        _title(result.defects, result.near_ties),
        origin,
        [*facts, place],
        [_methods(result), *differences],
        data=data | dict(facts),
        notes=[*(("defect", problem) for problem in result.problems), *_NOTES, *chance],
    )


def _title(defects: int, near_ties: int) -> str:
    if defects:
        return f"Defect: output is changed ({defects} finding{'s' if defects > 1 else ''})"
    if near_ties:
        return f"Clean: output is unchanged, but for {near_ties} near-tie{'s' if near_ties > 1 else ''} of rounding"
    return "Clean: output is unchanged, token by token"


def _methods(result: AuditResult) -> Table:
    rows = [
        (
            method.name,
            f"{method.tokens:,}",
            f"{method.tau:.2f}" if method.tau else "–",
            str(sum(not one.defect for one in method.differences)),
            str(sum(one.defect for one in method.differences) + len(method.problems)),
            f"{method.median:.2f}" if method.median else "–",
            f"{method.worst:.2f}" if method.worst else "–",
        )
        for method in result.methods
    ]
    rows += [(f"p, {name}", *["–"] * 5, f"{value:.2g}") for name, value in result.p_values.items()]
    columns = ("method", "tokens", "τ", "near-ties", "defects", "off, half", "off, worst")
    return Table(result.dtype, columns, rows, optional=("τ", "off, half"))


def _differences(result: AuditResult, token_text: Callable[[int | str], str]) -> Table:
    """Return the table of differences, defects first."""
    ordered = sorted(
        result.differences, key=lambda one: (not one.defect, one.method, one.prompt, one.position)
    )
    rows = [
        (
            *(
                one.method,
                str(one.prompt),
                str(one.position),
                token_text(one.expected),
                token_text(one.token),
            ),
            *(f"{one.gap:.3g}", f"{one.noise:.3g}", "defect" if one.defect else "near-tie"),
        )
        for one in ordered[:_SHOWN]
    ]
    left = len(ordered) - len(rows)
    note = f"{left} more are in the JSON file" if left else ""
    columns = ("method", "prompt", "position", "expected", "found", "gap", "noise", "is")
    return Table(f"Differences in {result.dtype}", columns, rows, note)


def _to_dict(result: AuditResult) -> dict[str, Any]:
    methods = [vars(one) | {"differences": list(map(_plain, one.differences))} for one in result.methods]
    return {
        "verdict": DEFECT if result.defects else CLEAN,
        "tokens": result.tokens,
        "differences": len(result.differences),
        "near_ties": result.near_ties,
        "defects": result.defects,
        "sampled_p_value": result.p_value,
        "rounding": asdict(result.rounding),
        "methods": methods,
        "p_values": result.p_values,
        "problems": result.problems,
    }


def _plain(difference: Any) -> dict[str, Any]:
    """Return a difference for JSON, where what is no finite number is null."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in asdict(difference).items()
    }
