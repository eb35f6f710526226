"""What the plots of results made by hand show."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.compare.findings import Findings
from experiments.compare.plan import MethodKey
from experiments.compare.plots import make_plots
from tests.experiments.compare.hand import trained

SYSTEMS = ["recall", "clover2", "own", "eagle", "eagle3", "medusa", "hydra", "another", "a third"]


def looks(figure: Figure) -> list[tuple[str, str, str]]:
    axes, *_ = figure.get_axes()
    lines = [container[0] for container in axes.containers]
    return [(str(line.get_color()), str(line.get_linestyle()), str(line.get_marker())) for line in lines]


def test_no_two_lines_look_the_same_and_colours_are_kept() -> None:
    records = [trained(MethodKey(system), {"code": [(4, 10), (8, 10)]}) for system in SYSTEMS]
    findings = Findings(records)
    accuracy = make_plots(findings)["accuracy"]
    found = looks(accuracy.draw())
    assert len(set(found)) == len(SYSTEMS)
    fewer = Findings(records)
    del fewer.heads[next(iter(fewer.heads))]
    assert [colour for colour, _, _ in looks(make_plots(fewer)["accuracy"].draw())] == [
        colour for colour, _, _ in found[1:]
    ]
