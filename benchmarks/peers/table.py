"""Results as tables in Markdown."""

from __future__ import annotations

from benchmarks.peers.engines import ENGINES
from benchmarks.peers.results import Result, equal_texts, newest, over_plain

_COLUMNS = (
    "engine",
    "tokens/s",
    "times our plain bf16",
    "times its own plain",
    "texts as its plain",
    "perplexity",
)
_HEAD = (f"| {' | '.join(_COLUMNS)} | memory, GB (own) | start, s |", "|---" * 8 + "|")


def tables(results: list[Result]) -> str:
    """Return a table for each set of prompts and batch size, with what was left out below."""
    return "\n\n".join(_table(group) for group in newest(results).values())


def _table(group: dict[str, Result]) -> str:
    order = list(ENGINES)
    found = sorted(
        group.values(), key=lambda one: order.index(one.engine) if one.engine in order else len(order)
    )
    ran = [one for one in found if one.left_out is None]
    first = (ran or found)[0]
    texts = sum(len(block.texts) for block in ran[0].blocks) if ran else 0
    dates, revisions = ({getattr(one, name) for one in found} for name in ("date", "revision"))
    lines = [
        f"**{first.prompts}, batch {first.batch_size}**: {texts} prompts, at most {first.max_new_tokens} new tokens; "
        f"{first.machine}; {min(dates)[:16].replace('T', ' ')} to {max(dates)[11:16]} UTC, "
        f"revision {', '.join(sorted(revisions))}",
        "",
        *_HEAD,
        *(_row(one, group) for one in ran),
    ]
    left = [f"- {one.engine}: {one.left_out}" for one in found if one.left_out is not None]
    versions = {f"{name} {number}" for one in ran for name, number in one.versions.items()}
    lines += ["", f"Versions: {', '.join(sorted(versions))}."] if versions else []
    return "\n".join([*lines, *(["", "Left out:", "", *left] if left else [])])


def _row(one: Result, group: dict[str, Result]) -> str:
    plain = group.get(one.plain)
    gain = same = ""
    if one.engine != one.plain and plain is not None and plain.left_out is None:
        gain = over_plain(one, plain).text()
        same = "{} of {}".format(*equal_texts(one, plain))
    perplexity = "" if one.perplexity is None else f"{one.perplexity:.3f}"
    memory = f"{one.peak_memory / 1e9:.1f} ({one.own_memory / 1e9:.1f})"
    cells = (one.engine, f"{one.tokens_per_second:.1f}", one.of_anchor.text(), gain, same, perplexity, memory)
    return f"| {' | '.join(cells)} | {one.startup_seconds:.1f} |"
