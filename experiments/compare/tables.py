"""The tables of a comparison; what follows ± is one standard error over prompts, and over seeds."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from clover.drafting import parse_tree
from clover.measure.report.table import Table
from clover.measure.report.words import duration
from experiments.compare.findings import HEAD_COUNTS, Findings, Row
from experiments.compare.ratios import Ratio

_ERRORS = "± is one standard error over prompts, and over seeds where there are several."
_FEW_ERRORS = 2  # a smaller difference is not told from none


def make_tables(findings: Findings) -> list[Table]:
    """Return all tables that the results have something for."""
    tables = [
        _speed(findings),
        *(_by_task(findings) if len(findings.tasks) > 1 else ()),
        _depths(findings),
        _heads(findings),
        _ablation(findings),
        _training(findings),
        _origin(findings),
    ]
    return [table for table in tables if table.rows]


def _speed(findings: Findings) -> Table:
    number = len(findings.tasks)
    rows = [
        (
            findings.label(row.series) + _lacking(row, number),
            f"{row.temperature:g}",
            str(row.batch_size),
            str(row.nodes or "–"),
            row.speed.estimate.text(1),
            "1" if not row.nodes else row.speedup.geometric.text(),
            row.tau.estimate.text(),
            f"{row.milliseconds('draft'):.2f}",
            f"{row.milliseconds('run'):.2f}",
            _identical(row),
        )
        for row in findings.rows
    ]
    tasks = f"Over {number} tasks together. " if number > 1 else ""
    if len(findings.complete_rows) < len(rows):
        tasks += "A row with fewer says so, and compares only with rows of the same tasks. "
    note = (
        f"{tasks}Speed-up: against plain decoding in the same engine and run, the geometric mean over batches of "
        "different prompts, each by its median round. τ: tokens per step, the bonus token included. "
        f"{_of_some(findings.rows)}{_ERRORS}"
    )
    columns = ("method", "T", "batch", "draft tokens\nat most", "tokens/s", "speed-up\n(geometric mean)", "τ")
    more = ("draft\nms/step", "run\nms/step", "identical\nto plain")
    return Table("Speed", (*columns, *more), rows, note)


def _of_some(rows: Sequence[Row]) -> str:
    """Return what is to be said where there are drawn trees, or several seeds."""
    drawn = any(row.series.method.tree and not parse_tree(row.series.method.tree).exact for row in rows)
    seeds = any(len({seed for _, seed in row.runs}) > 1 for row in rows)
    words = (
        "Trees named drawn are verified by recursive rejection sampling, all others by token matching. "
        * drawn
    )
    return words + "A row of several seeds is of all of them together. " * seeds


def _lacking(row: Row, tasks: int) -> str:
    return "" if len(row.tasks) == tasks else f" ({len(row.tasks)} of {tasks} tasks)"


def _identical(row: Row) -> str:
    if not row.nodes:
        return "baseline"
    if not all(own.exact for own in row.own):
        return "equal in distribution"
    identical, texts = sum(own.identical for own in row.own), sum(len(own.acceptances) for own in row.own)
    return "yes" if identical == texts else f"{identical} of {texts}"


def _by_task(findings: Findings) -> Iterator[Table]:
    """Speed-up by task at every setting, τ at every temperature; columns are the tasks that were measured there."""
    found = {
        (task, row.temperature, row.batch_size, row.series): row
        for task in findings.tasks
        for row in findings.rows_of([task])
    }
    for temperature, size in product(findings.temperatures, findings.batch_sizes):
        setting = (temperature, size)
        shown = [row for row in findings.rows if (row.temperature, row.batch_size) == setting and row.nodes]
        tasks = [
            task for task in findings.tasks if any((task, *setting, row.series) in found for row in shown)
        ]
        for tau in (False, True) if size == findings.batch_sizes[0] else (False,):
            body = [
                (
                    findings.label(row.series),
                    *(_cell(found.get((task, *setting, row.series)), tau) for task in tasks),
                    _cell(row if row.tasks >= set(tasks) else None, tau),
                )
                for row in shown
            ]
            title = f"{'τ' if tau else 'Speed-up'} by task, temperature {temperature:g}, batch {size}"
            yield Table(title, ("method", *tasks, "all"), body)


def _cell(row: Row | None, tau: bool) -> str:
    if row is None:
        return "–"
    return (row.tau.estimate if tau else row.speedup.geometric).text()


def _depths(findings: Findings) -> Table:
    rows = [row for row in findings.rows if row.depths and row.batch_size == findings.batch_sizes[0]]
    deepest = max((len(row.depths) for row in rows), default=0)
    body = [
        (
            findings.label(row.series) + _lacking(row, len(findings.tasks)),
            f"{row.temperature:g}",
            *_padded(map(_percent, row.depths), deepest),
        )
        for row in rows
    ]
    columns = ("method", "T", *(f"depth {depth + 1}" for depth in range(deepest)))
    note = f"Share accepted, in %, of the steps that came to a draft token at this depth. {_ERRORS}"
    return Table("Acceptance per depth", columns, body, note)


def _heads(findings: Findings) -> Table:
    body = [
        (findings.label(series), str(head), *map(_percent, shares))
        for series, kinds in findings.heads.items()
        for head, shares in enumerate(zip(*kinds.values(), strict=True), 1)
    ]
    note = (
        "Share of the positions, in %, where the text's next token is the head's first choice, or among its five best: "
        "forced with the text's tokens, and chained, where the first choices of all heads before must have been right, "
        f"too. {_ERRORS}"
    )
    return Table("Accuracy of the heads", ("method", "head", *HEAD_COUNTS), body, note)


def _ablation(findings: Findings) -> Table:
    found = findings.ablations()
    deepest = max((len(one.top5) for one in found), default=0)
    body = [
        (
            findings.label(one.series),
            findings.label(one.against),
            *_padded((_difference(value, 100, 1) for value in one.top5), deepest),
            "–" if one.tau is None else _difference(one.tau, 1, 2),
        )
        for one in found
    ]
    note = (
        "Points of top-5 accuracy that each head gains or loses, forced with the text's tokens, and of τ, prompt by "
        f"prompt. * marks differences of more than {_FEW_ERRORS} standard errors; the others are not told from none."
    )
    columns = ("method", "against", *(f"head {head + 1}" for head in range(deepest)), "τ")
    return Table("Ablation", columns, body, note, words=2)


def _difference(difference: Ratio, scale: float, digits: int) -> str:
    found = difference.estimate
    mark = " *" if found.error is not None and abs(found.value) > _FEW_ERRORS * found.error else ""
    return f"{'+' if found.value >= 0 else ''}{found.scaled(scale).text(digits)}{mark}"


def _training(findings: Findings) -> Table:
    body = [
        (
            findings.label(series) + (f", seed {one.method.seed}" if one.method.seed else ""),
            f"{one.parameters:,}",
            one.how.loss or "–",
            "–" if one.how.learning_rate is None else f"{one.how.learning_rate:.3g}",
            "–" if one.how.steps is None else f"{one.how.steps:,}",
            f"{one.tokens:,}",
            duration(one.seconds),
            f"{one.loss:.3f}",
        )
        for series, one in findings.trained
    ]
    columns = ("method", "parameters", "loss", "rate", "steps", "tokens", "time", "held-out loss")
    # Drafts that were trained elsewhere say less: a column without a word is left out.
    said = [one for one in zip(columns, *body, strict=True) if set(one[1:]) != {"–"}]
    columns, *body = zip(*said, strict=True)
    return Table("Training", columns, body, "Losses of different names cannot be compared.")


def _origin(findings: Findings) -> Table:
    """Every way in which the results came about; usually one."""
    body: dict[tuple[str, ...], list[str]] = {}
    for record in findings.records:
        run, target = record.origin, record.config["place"]["target"]
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        where = f"{run.machine} ({run.device}, {run.dtype})"
        body.setdefault((target, where, versions, run.revision or "–", run.command), []).append(run.date)
    rows = [(*key, str(len(dates)), min(dates), max(dates)) for key, dates in body.items()]
    columns = ("target", "machine", "versions", "revision", "command", "results", "first", "last")
    return Table("Where the results came from", columns, rows, words=5)


def _percent(share: Ratio) -> str:
    return share.estimate.scaled(100).text(1)


def _padded(values: Iterable[str], length: int) -> list[str]:
    listed = list(values)
    return [*listed, *["–"] * (length - len(listed))]
