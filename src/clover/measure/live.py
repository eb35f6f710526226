"""Show the demo while it runs: a panel per method with its text as it grows, or a line per prompt."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from clover.measure.report.figure import shade
from clover.measure.report.table import facts_grid
from clover.measure.report.words import mode, number_of, rate
from clover.measure.rounds import Round, totals
from clover.measure.speed import Method
from clover.measure.systems import system_color

_COLUMNS = 3
_MIN_WIDTH, _MIN_HEIGHT = 75, 20
_MAX_LINES = 12
_ON_SCREEN = 3000  # characters of a text that can be on the screen


class Panels:
    """The live display; a context manager. Its size follows the terminal's."""

    def __init__(self, console: Console, tokenizer: Any, total: int):
        self.console, self.tokenizer, self.total = console, tokenizer, total
        self.rounds: list[Round] = []
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    @property
    def fits(self) -> bool:
        """Return whether there is a terminal, and one that is large enough."""
        shown = self.console.is_terminal and not self.console.is_dumb_terminal
        return shown and self.console.width >= _MIN_WIDTH and self.console.height >= _MIN_HEIGHT

    def __enter__(self) -> Self:
        """Start to draw on the lower part of the screen."""
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove what was drawn."""
        self._live.stop()

    def show(self, current: Round) -> None:
        """Show a round that is running."""
        self._live.update(self.render(current), refresh=True)

    def render(self, current: Round) -> RenderableType:
        """Return the whole display: a panel per method, and the totals of the prompts before."""
        rows = -(-(len(current.methods) + 1) // _COLUMNS)
        height = min((self.console.height - 2) // rows - 2, _MAX_LINES)
        panels = [self._panel(current, one, height) for one in current.methods]
        panels.append(self._totals(current, height))
        table = Table.grid(expand=True)
        for _ in range(_COLUMNS):
            table.add_column(ratio=1)
        for row in range(rows):
            table.add_row(*panels[row * _COLUMNS : (row + 1) * _COLUMNS])
        head = f" prompt {current.number + 1} of {self.total}   {mode(current.temperature)}   each shade is one step"
        return Group(Text(head, "bold", no_wrap=True, overflow="ellipsis"), table)

    def _panel(self, current: Round, method: Method, height: int) -> Panel:
        width = max(self.console.width // _COLUMNS - 4, 8)
        lines = self._text(current, method).wrap(self.console, width, overflow="fold")
        return Panel(
            Text("\n").join(lines[-height:]),
            title=Text(method.label, "bold"),
            subtitle=Text(_speed(current, method)),
            border_style=_colour(method.name, 0),
            height=height + 2,
            padding=(0, 1),
        )

    def _text(self, current: Round, method: Method) -> Text:
        text = Text(_printable(current.prompt[-_ON_SCREEN:]), style="dim")
        decoding, run = current.decodings.get(method.name), current.runs.get(method.name)
        pieces = [] if run is None else [self.tokenizer.decode(run.texts[0])]
        for step, piece in enumerate(pieces if decoding is None else decoding.pieces):
            text.append(_printable(piece), style=_colour(method.name, 2 * (step % 2)))
        return text

    def _totals(self, current: Round, height: int) -> Panel:
        done = [one for one in self.rounds if one.temperature == current.temperature]
        labels = {one.name: one.label for one in current.methods}
        lines = [
            (f"{gain:.2f}×", f"{rate(fast):>4}/s  {labels[name]}")
            for name, (fast, gain) in totals(done).items()
        ]
        title = f"{number_of(len(done), 'prompt')} so far"
        return Panel(facts_grid(lines), title=title, border_style="dim", height=height + 2)


def describe(current: Round) -> str:
    """Return a finished round in one line: the speed of each method, and of drafts the speed-up and τ."""
    parts, (first, *_) = [], current.methods
    for method in current.methods:
        (fast, gain), run = totals([current])[method.name], current.runs[method.name]
        same = "" if run.texts == current.runs[first.name].texts else ", NOT identical"
        drafted = f" ({gain:.2f}×, τ {run.acceptance.tau:.2f}{same})" if method.drafts else ""
        parts.append(f"{method.label} {rate(fast)}{drafted}")
    return f"prompt {current.number + 1}, {mode(current.temperature)}, tokens/s: " + ", ".join(parts)


def _speed(current: Round, method: Method) -> str:
    decoding, run = current.decodings.get(method.name), current.runs.get(method.name)
    if run is not None:
        tau = f"  τ {run.acceptance.tau:.2f}" if method.drafts else ""
        return f"✓ {rate(run.tokens / run.seconds)} tokens/s{tau}"
    if decoding is None or not decoding.seconds:
        return "…"
    return f"{rate(decoding.tokens / decoding.seconds)} tokens/s"


def _colour(name: str, step: int) -> str:
    red, green, blue = (round(255 * value) for value in shade(system_color(name), step))
    return f"rgb({red},{green},{blue})"


def _printable(text: str) -> str:
    """Replace the characters that would move a terminal's cursor."""
    return "".join(c if c == "\n" or c.isprintable() else "�" for c in text.expandtabs(4))
