"""What tests ask of any picture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from clover.measure.report.figure import STYLE, Draw


def drawn(draw: Draw) -> Figure:
    """The figure, laid out."""
    with rc_context(STYLE):
        figure = draw()
        FigureCanvasAgg(figure).draw()
    return figure


def texts(figure: Figure) -> list[str]:
    """All visible texts."""
    return [text.get_text() for text in _visible(figure)]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover one another, or (text, "edge") for one that leaves the figure."""
    with rc_context(STYLE):
        boxes = [(text.get_text(), text.get_window_extent()) for text in _visible(figure)]
    edge = figure.bbox.padded(1)
    found = [(text, "edge") for text, box in boxes if box.union([box, edge]).bounds != edge.bounds]
    for (one, a), (other, b) in combinations(boxes, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        if width > 1 and height > 1:
            found.append((one, other))
    return found


def _visible(figure: Figure) -> list[Text]:
    hidden = {text for axes in figure.axes for text in _hidden(axes)}
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_visible() and text.get_text().strip() and text not in hidden]


def _hidden(axes: Axes) -> Iterator[Text]:
    """Texts of invisible panels, and labels of ticks that lie outside a panel."""
    if not axes.get_visible():
        yield from (text for text in axes.findobj(Text) if isinstance(text, Text))
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not min(limits) <= tick.get_loc() <= max(limits):
                yield from (tick.label1, tick.label2)
