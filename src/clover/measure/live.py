"""Show the demo while it runs: a panel per method with its text as it grows."""

from typing import Any

from matplotlib.colors import to_rgb
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from clover.measure.comparison import Setting
from clover.measure.methods import Method
from clover.measure.report.table import facts_grid
from clover.measure.report.words import number_of, rate
from clover.measure.systems import system_color

_COLUMNS = 3
_MIN_WIDTH, _MIN_HEIGHT = 75, 20
_MAX_LINES = 12
_ON_SCREEN = 3000  # characters of a text that can be on the screen


class Panels:
    """The live display; a context manager. Its size adapts to the terminal."""

    def __init__(self, console: Console, tokenizer: Any):
        self.console, self.tokenizer = console, tokenizer
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    @property
    def fits(self) -> bool:
        """Return whether there is a terminal that is large enough."""
        shown = self.console.is_terminal and not self.console.is_dumb_terminal
        return shown and self.console.width >= _MIN_WIDTH and self.console.height >= _MIN_HEIGHT

    def __enter__(self) -> Self:
        """Start drawing on the lower part of the screen."""
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove what was drawn."""
        self._live.stop()

    def show(self, setting: Setting) -> None:
        """Show the running turn."""
        self._live.update(self.render(setting), refresh=True)

    def render(self, setting: Setting) -> RenderableType:
        """Return the whole display: a panel per method, and the totals of the finished prompts."""
        rows = -(-(len(setting.methods) + 1) // _COLUMNS)
        height = min((self.console.height - 2) // rows - 2, _MAX_LINES)
        panels = [self._panel(setting, one, height) for one in setting.methods]
        panels.append(_totals(setting, height))
        table = Table.grid(expand=True)
        for _ in range(_COLUMNS):
            table.add_column(ratio=1)
        for row in range(rows):
            table.add_row(*panels[row * _COLUMNS : (row + 1) * _COLUMNS])
        head = (
            f" prompt {setting.turns + 1} of {len(setting.batches)}   {setting.name}   each shade is one step"
        )
        return Group(Text(head, "bold", no_wrap=True, overflow="ellipsis"), table)

    def _panel(self, setting: Setting, method: Method, height: int) -> Panel:
        width = max(self.console.width // _COLUMNS - 4, 8)
        lines = self._text(setting, method.name).wrap(self.console, width, overflow="fold")
        return Panel(
            Text("\n").join(lines[-height:]),
            title=Text(method.label, "bold"),
            subtitle=Text(_speed(setting, method)),
            border_style=_color(method.name, 0),
            height=height + 2,
            padding=(0, 1),
        )

    def _text(self, setting: Setting, name: str) -> Text:
        prompt = self.tokenizer.decode(list(setting.batch[0].prompt))
        text = Text(_printable(prompt[-_ON_SCREEN:]), style="dim")
        pieces = [self.tokenizer.decode(setting.finished[name].texts[0])] if name in setting.finished else []
        if name in setting.decodings:
            pieces = setting.decodings[name].pieces
        for step, piece in enumerate(pieces):
            text.append(_printable(piece), style=_color(name, 2 * (step % 2)))
        return text


def _totals(setting: Setting, height: int) -> Panel:
    done = setting.measured
    lines = [
        (f"{one.speedup(done[0]).value:.2f}×", f"{rate(one.speed):>4}/s  {one.method.label}") for one in done
    ]
    title = f"{number_of(setting.turns, 'prompt')} so far"
    return Panel(facts_grid(lines), title=title, border_style="dim", height=height + 2)


def _speed(setting: Setting, method: Method) -> str:
    decoding, run = setting.decodings.get(method.name), setting.finished.get(method.name)
    if run is not None:
        tau = f"  τ {run.acceptance.tau:.2f}" if method.drafts else ""
        return f"✓ {rate(run.tokens / run.seconds)} tokens/s{tau}"
    if decoding is None or not decoding.seconds:
        return "…"
    return f"{rate(decoding.tokens / decoding.seconds)} tokens/s"


def _color(name: str, step: int) -> str:
    """Return the color of a method, mixed with white; a higher `step` is lighter."""
    red, green, blue = (round(255 * (part + (1 - part) * 0.25 * step)) for part in to_rgb(system_color(name)))
    return f"rgb({red},{green},{blue})"


def _printable(text: str) -> str:
    """Replace characters that would move the terminal's cursor."""
    return "".join(c if c == "\n" or c.isprintable() else "�" for c in text.expandtabs(4))
