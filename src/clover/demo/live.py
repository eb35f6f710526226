"""What is seen while the demo runs: two panels on a terminal, one line per prompt elsewhere, or nothing."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from clover.demo.measure import PLAIN, TRANSFORMERS, Decoding, Round
from clover.demo.report import LABELS, summarize

MIN_WIDTH, MIN_HEIGHT = 60, 14
_MAX_LINES = 22
_TAIL = 4000  # characters of a text that can be on the screen
# The steps of a text alternate between two shades, so that one sees how much each of them gave.
_SHADES = {PLAIN: ("white", "grey66"), "draft": ("bright_green", "green3")}


class View:
    """Shows nothing; the base of what shows something."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """Tell what is being done."""

    def show(self, current: Round) -> None:
        """Show a round that is running; called about ten times a second."""

    def finished(self, current: Round) -> None:
        """Take note of a finished round."""


class Lines(View):
    """One line per prompt and temperature, for logs and pipes."""

    def __init__(self, console: Console, total: int):
        self.console, self.total = console, total

    def say(self, text: str) -> None:
        self.console.print(Text(text))

    def finished(self, current: Round) -> None:
        parts = [f"{current.number + 1:>{len(str(self.total))}}/{self.total} {mode(current.temperature):<13}"]
        for result in summarize([current]):
            speedup = f" ({result.speedup:.2f}×, τ {result.tau:.2f})" if result.drafted else ""
            parts.append(f"{result.label} {result.tokens_per_second:.0f}{speedup}")
            if result.drafted:
                parts.append("identical" if result.identical else "NOT identical")
        self.console.print(Text("  ".join(parts)), soft_wrap=True)


class Panels(View):
    """Both texts as they grow, side by side."""

    def __init__(self, console: Console, total: int):
        self.console, self.total = console, total
        self.rounds: list[Round] = []
        self._status = ""
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._status = text
        self._live.update(Text(f" {text} …", style="dim"), refresh=True)

    def show(self, current: Round) -> None:
        self._live.update(self.render(current), refresh=True)

    def finished(self, current: Round) -> None:
        self.rounds.append(current)
        self.show(current)

    def render(self, current: Round) -> RenderableType:
        """The whole display of one moment."""
        grid = Table.grid(expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(*(self._panel(current, name) for name in current.decodings))
        return Group(self._header(current), grid, self._footer())

    def _header(self, current: Round) -> Text:
        tokens = current.request.max_new_tokens
        doing = "transformers' generate is running" if current.generating else "each shade is one step"
        return Text.assemble(
            (f" prompt {current.number + 1} of {self.total}", "bold"),
            (f"   {mode(current.temperature)}   {tokens} tokens   {doing}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _panel(self, current: Round, name: str) -> Panel:
        decoding = current.decodings[name]
        height = min(self.console.height - 6, _MAX_LINES)
        width = max(self.console.width // 2 - 4, 10)
        return Panel(
            _tail(_body(current.prompt, decoding, name), self.console, width, height),
            title="[bold]plain decoding[/]" if name == PLAIN else f"[bold]{LABELS.get(name, name)}[/]",
            subtitle=_figures(decoding, name),
            border_style="grey50" if name == PLAIN else "green",
            height=height + 2,
            padding=(0, 1),
        )

    def _footer(self) -> Text:
        """Totals so far: one line per temperature."""
        lines = []
        results = summarize(self.rounds)
        for result in (r for r in results if r.drafted):
            others = {r.name: r.tokens_per_second for r in results if r.temperature == result.temperature}
            line = f" {mode(result.temperature):<13} so far {result.speedup:.2f}×   τ {result.tau:.2f}   tokens/s"
            line += f" {others[PLAIN]:.0f} → {result.tokens_per_second:.0f}"
            if TRANSFORMERS in others:
                line += f"  (transformers {others[TRANSFORMERS]:.0f})"
            lines.append(line)
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def mode(temperature: float) -> str:
    """How the tokens are chosen, in words.

    >>> mode(0.0), mode(0.8)
    ('greedy', 'sampled (0.8)')
    """
    return "greedy" if temperature == 0 else f"sampled ({temperature:g})"


def choose_view(console: Console, total: int, quiet: bool) -> View:
    """Panels on a terminal that is large enough, lines elsewhere."""
    if quiet:
        return View()
    roomy = console.width >= MIN_WIDTH and console.height >= MIN_HEIGHT
    if console.is_terminal and not console.is_dumb_terminal and roomy:
        return Panels(console, total)
    return Lines(console, total)


def _body(prompt: str, decoding: Decoding, name: str) -> Text:
    shades = _SHADES.get(name, _SHADES["draft"])
    text = Text(_printable(prompt[-_TAIL:]), style="grey50")
    skipped = max(len(decoding.pieces) - _TAIL, 0)
    for step, piece in enumerate(decoding.pieces[skipped:], start=skipped):
        text.append(_printable(piece), style=shades[step % 2])
    return text


def _tail(text: Text, console: Console, width: int, height: int) -> Text:
    lines = text.wrap(console, width, overflow="fold")
    return Text("\n").join(lines[-height:])


def _printable(text: str) -> str:
    """The text without what would move a terminal's cursor."""
    return "".join(c if c == "\n" or c.isprintable() else "�" for c in text.expandtabs(4))


def _figures(decoding: Decoding, name: str) -> str:
    if not decoding.seconds:
        return "…"
    tau = "" if name == PLAIN else f"   τ {decoding.tokens / max(decoding.steps, 1):.2f}"
    done = "✓ " if decoding.run else ""
    return f"{done}{decoding.tokens / decoding.seconds:.0f} tokens/s{tau}   {decoding.seconds:.2f} s"
