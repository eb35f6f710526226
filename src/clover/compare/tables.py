"""The tables of a comparison, each as rows of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clover.compare.plan import PLAIN, Method
from clover.compare.progress import clock
from clover.compare.summary import Findings, Row, percent
from clover.engine import STEP_PHASES


@dataclass(frozen=True)
class Table:
    """Text in rows; `note` is a sentence below the title. `columns` and every row are of equal length."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown; what the text holds of its marks is escaped."""
        lines = [self.columns, *self.rows]
        body = ["| " + " | ".join(map(escape, line)) + " |" for line in lines]
        body.insert(1, "|" + "---|" * len(self.columns))
        note = [escape(self.note), ""] if self.note else []
        return "\n".join([f"## {escape(self.title)}", "", *note, *body, ""])


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> escape("a|b *c* <d>")
    'a\\|b \\*c\\* &lt;d&gt;'
    """
    text = " ".join(text.split()).replace("\\", "\\\\")
    for mark in "|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def make_tables(findings: Findings) -> list[Table]:
    """All tables that the results have something for."""
    tables = [
        _speed(findings),
        *_by_task(findings),
        *_by_batch_size(findings),
        _phases(findings),
        _depths(findings),
        _heads(findings),
        _ablation(findings),
        _trees(findings),
        _learning_rates(findings),
        _training(findings),
        _origin(findings),
    ]
    return [table for table in tables if table.rows]


def setting(row: Row) -> str:
    """Temperature and batch size in words."""
    return f"temperature {row.temperature:g}, batch {row.batch_size}"


def _speed(findings: Findings) -> Table:
    rows = [
        (
            findings.label(row.method),
            f"{row.temperature:g}",
            str(row.batch_size),
            f"{row.speed:.1f}",
            "1" if row.method.system == PLAIN else f"{row.speedup:.2f} ({row.low:.2f} – {row.high:.2f})",
            f"{row.tau:.2f}",
            f"{row.milliseconds['draft']:.2f}",
            f"{row.milliseconds['verify']:.2f}",
            _identical(row),
        )
        for row in findings.rows()
    ]
    tasks = f" Mean over {len(findings.tasks)} tasks." if len(findings.tasks) > 1 else ""
    note = (
        "Speed-up against plain decoding in the same engine and run: the median round, in brackets the lowest and the "
        f"highest. τ is tokens per step, the bonus token included.{tasks}"
    )
    columns = (
        "method",
        "temperature",
        "batch",
        "tokens/s",
        "speed-up",
        "τ",
        "draft ms/step",
        "verify ms/step",
    )
    return Table("Speed", note, (*columns, "identical to plain"), tuple(rows))


def _identical(row: Row) -> str:
    if row.method.system == PLAIN:
        return "baseline"
    if not row.exact:
        return "rule B: need not be"
    return "yes" if row.identical == row.texts else f"{row.identical} of {row.texts}"


def _by_task(findings: Findings) -> list[Table]:
    """Speed-up by task at every setting, τ at every temperature; for more than one task."""
    tasks = findings.tasks
    if len(tasks) < 2:
        return []
    rows = {task: findings.rows(task) for task in tasks}
    tables = []
    for temperature in findings.temperatures:
        for size in findings.batch_sizes:
            shown = [r for r in findings.rows() if (r.temperature, r.batch_size) == (temperature, size)]
            values = {
                (row.method, task): row
                for task in tasks
                for row in rows[task]
                if (row.temperature, row.batch_size) == (temperature, size)
            }
            parts = [("Speed-up", "speedup")] + ([("τ", "tau")] if size == findings.batch_sizes[0] else [])
            for title, name in parts:
                body = [
                    (
                        findings.label(row.method),
                        *(_figure(values.get((row.method, task)), name) for task in tasks),
                        _figure(row, name),
                    )
                    for row in shown
                    if row.method.system != PLAIN
                ]
                title = f"{title} by task, temperature {temperature:g}, batch {size}"
                tables.append(Table(title, "", ("method", *tasks, "mean"), tuple(body)))
    return tables


def _by_batch_size(findings: Findings) -> list[Table]:
    sizes = findings.batch_sizes
    if len(sizes) < 2:
        return []
    tables = []
    for temperature in findings.temperatures:
        rows = [row for row in findings.rows() if row.temperature == temperature]
        found = {(row.method, row.batch_size): row for row in rows}
        body = [
            (
                findings.label(method),
                *(_throughput(found.get((method, size))) for size in sizes),
            )
            for method in dict.fromkeys(row.method for row in rows)
        ]
        title = f"Tokens per second by batch size, temperature {temperature:g}"
        tables.append(
            Table(title, "Speed-up in brackets.", ("method", *(f"batch {s}" for s in sizes)), tuple(body))
        )
    return tables


def _throughput(row: Row | None) -> str:
    return "–" if row is None else f"{row.speed:.0f} ({row.speedup:.2f}×)"


def _figure(row: Row | None, name: str) -> str:
    return "–" if row is None else f"{getattr(row, name):.2f}"


def _phases(findings: Findings) -> Table:
    rows = [
        (
            findings.label(row.method),
            setting(row),
            *(f"{row.milliseconds[phase]:.2f}" for phase in STEP_PHASES),
        )
        for row in findings.rows()
    ]
    columns = ("method", "setting", *(f"{phase} ms" for phase in STEP_PHASES))
    return Table("Where the time of a decoding step goes", "", columns, tuple(rows))


def _depths(findings: Findings) -> Table:
    rows = [row for row in findings.rows() if row.depths and row.batch_size == findings.batch_sizes[0]]
    deepest = max((len(row.depths) for row in rows), default=0)
    body = [
        (findings.label(row.method), f"{row.temperature:g}", *_padded(map(percent, row.depths), deepest))
        for row in rows
    ]
    note = "Share accepted, in %, of the steps that came to a draft token at this depth."
    columns = ("method", "temperature", *(f"depth {d + 1}" for d in range(deepest)))
    return Table("Acceptance per depth", note, columns, tuple(body))


def _heads(findings: Findings) -> Table:
    found = findings.head_rows()
    body = [
        (
            findings.label(row.method),
            str(head + 1),
            *map(percent, row.forced[head]),
            *map(percent, row.chained[head]),
        )
        for row in found
        for head in range(len(row.forced))
    ]
    sizes = found[0].top if found else ()
    columns = ("method", "head", *(f"top {k}" for k in sizes), *(f"top {k}, chained" for k in sizes))
    note = (
        "Share of the positions, in %, where the text's next token is among the head's k best: forced with the text's "
        "tokens, and chained, where all heads before must have been right with their first choice."
    )
    return Table("Accuracy of the heads", note, columns, tuple(body))


def _ablation(findings: Findings) -> Table:
    found = findings.differences()
    deepest = max((len(one.top5) for one in found), default=0)
    body = [
        (
            findings.label(one.method),
            findings.label(one.against),
            *_padded((f"{100 * value:+.1f}" for value in one.top5), deepest),
            "–" if one.tau is None else f"{one.tau:+.2f}",
        )
        for one in found
    ]
    note = "Points of top-5 accuracy that each head gains or loses, forced with the text's tokens."
    columns = ("method", "against", *(f"head {head + 1}" for head in range(deepest)), "τ")
    return Table("Ablation", note, columns, tuple(body))


def _trees(findings: Findings) -> Table:
    """For drafts that were measured with more than one tree."""
    rows = [row for row in findings.rows() if row.method.tree]
    trees: dict[tuple[object, ...], set[str | None]] = {}
    for row in rows:
        trees.setdefault(_draft_name(row.method), set()).add(row.method.tree)
    body = [
        (
            findings.label(row.method),
            setting(row),
            str(row.nodes),
            f"{row.tau:.2f}",
            f"{row.speedup:.2f}",
            f"{row.milliseconds['verify']:.2f}",
        )
        for row in rows
        if len(trees[_draft_name(row.method)]) > 1
    ]
    columns = ("method", "setting", "draft tokens at most", "τ", "speed-up", "verify ms/step")
    return Table("Size of the tree", "", columns, tuple(body))


def _draft_name(method: Method) -> tuple[object, ...]:
    return method.system, method.loss, method.budget, method.learning_rate


def _learning_rates(findings: Findings) -> Table:
    taus = {_draft_name(row.method): row.tau for row in reversed(findings.rows())}
    systems: dict[tuple[object, ...], set[object]] = {}
    for one in findings.trained:
        m = one.method
        systems.setdefault((m.system, m.loss, m.budget), set()).add(m.learning_rate)
    body = []
    for one in findings.trained:
        m = one.method
        if len(systems[m.system, m.loss, m.budget]) > 1:
            tau = taus.get(_draft_name(m))
            body.append(
                (
                    findings.label(m),
                    f"{m.learning_rate:g}",
                    f"{one.loss:.3f}",
                    percent(one.accuracy[0]),
                    "–" if tau is None else f"{tau:.2f}",
                )
            )
    columns = ("method", "learning rate", "loss", "accuracy of head 1, %", "τ")
    return Table("Learning rate", "", columns, tuple(body))


def _training(findings: Findings) -> Table:
    body = [
        (
            findings.label(one.method),
            f"{one.parameters:,}",
            str(one.method.loss),
            str(one.method.budget),
            f"{one.steps:,}",
            f"{one.tokens:,}",
            clock(one.seconds),
            f"{one.tokens / max(one.seconds, 1e-9):,.0f}",
            f"{one.loss:.3f}",
            " ".join(map(percent, one.accuracy)),
        )
        for one in findings.trained
    ]
    columns = (
        "method",
        "parameters",
        "loss",
        "budget",
        "steps",
        "tokens",
        "time",
        "tokens/s",
        "held-out loss",
    )
    note = "Losses of different names cannot be compared. Accuracy: first choices, in %, on held-out texts."
    return Table("Training", note, (*columns, "accuracy of the heads"), tuple(body))


def _origin(findings: Findings) -> Table:
    """Every way in which the results came about; usually one."""
    body: dict[tuple[str, ...], list[str]] = {}
    for p in findings.provenances:
        versions = ", ".join(f"{name} {version}" for name, version in p.versions.items())
        where = f"{p.machine} ({p.device}, {p.dtype})"
        body.setdefault((p.target, where, versions, p.revision or "–", p.suite_hash, p.command), []).append(
            p.date
        )
    rows = [(*key, str(len(dates)), min(dates), max(dates)) for key, dates in body.items()]
    columns = ("target", "machine", "versions", "revision", "suite", "command", "results", "first", "last")
    return Table("Where the results came from", "", columns, tuple(rows))


def _padded(values: Iterable[str], length: int) -> list[str]:
    listed = list(values)
    return [*listed, *["–"] * (length - len(listed))]
