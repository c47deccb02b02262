"""The figures of a sweep as PNG and SVG: drop against bytes, and against the compression rate, for every task."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ellp.errors import InputError
from ellp.folder import replacing
from ellp.report.curves import Panel, Point, Series, task_label
from ellp.report.looks import LIGHT, Look, looks
from ellp.report.wording import fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY = "#1c2128", "#8b929c"
STYLE: Any = {
    "svg.hashsalt": "ellp",  # element ids then depend on the drawing alone
    "svg.fonttype": "path",  # the same letters everywhere
    "figure.facecolor": "white",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a name may hold a dollar sign
    "legend.frameon": False,
}
DASHES: Mapping[str, Any] = {
    "solid": "-",
    "dash": (0, (6, 3)),
    "dot": (0, (1.5, 2.5)),
    "dashdot": (0, (6, 2.5, 1.5, 2.5)),
}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "up": "^", "down": "v", "cross": "X", "hexagon": "h"}


def write_figures(panel: Panel, folder: Path, stem: str = "") -> list[Path]:
    """``drop-vs-bytes`` and ``drop-vs-rate`` as PNG and SVG; nothing is drawn where no setting has a rate."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for axis in ("bytes", "rate"):
        figure = draw(panel, axis)
        if figure is None:
            continue
        for kind in ("svg", "png"):
            path = folder / f"{stem}drop-vs-{axis}.{kind}"
            with replacing(path) as draft:
                draft.write_bytes(rendered(figure, kind))
            written.append(path)
    return written


def draw(panel: Panel, axis: str) -> Figure | None:
    """One small plot a task, the average first; intervals as bands."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("need matplotlib for figures, got none: pip install 'ellp[report]'") from None
    every = {series.key: look for series, look in zip(panel.series, looks(panel), strict=True)}
    shown = [one for one in panel.series if every[one.key].shown and any(_x(point, axis) for point in one.points)]
    if not shown:
        return None
    tasks: list[str | None] = [None] * (len(panel.tasks) > 1) + list(panel.tasks)
    columns = min(3, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.5 * columns + 0.4, 2.7 * rows + 0.7), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            for series in shown:
                _curve(axes, series, every[series.key], task, axis)
            _dress(axes, axis, "average" if task is None else task_label(task))
        for axes in grid[:, 0]:
            axes.set_ylabel("drop, points")
        _legend(figure, grid[0, 0], list(grid.flat)[len(tasks) :])
    return figure


def _legend(figure: Figure, drawn: Axes, spare: list[Axes]) -> None:
    """The series' names, in a place of the grid that is left over, or below it."""
    handles, labels = drawn.get_legend_handles_labels()
    for axes in spare:
        axes.set_axis_off()
    if spare and len(labels) <= 9:
        spare[0].legend(handles, labels, loc="center", fontsize=10.5, labelspacing=0.7, handlelength=2.6)
    else:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))


def rendered(figure: Figure, kind: str) -> bytes:
    """The file's content: the same for the same record."""
    import matplotlib as mpl

    page = io.BytesIO()
    with mpl.rc_context(STYLE):
        if kind == "png":
            figure.savefig(page, format="png", dpi=160, metadata={"Software": None})
            return page.getvalue()
        figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    short = re.compile(r"-?\d+\.\d{3,}")
    svg = page.getvalue().decode()
    return re.sub(r' d="[^"]*"', lambda path: short.sub(_two_digits, path[0]), svg).encode()


def _two_digits(number: re.Match[str]) -> str:
    return f"{float(number[0]) + 0.0:.2f}".rstrip("0").rstrip(".")


def _x(point: Point, axis: str) -> float | None:
    return point.rate if axis == "rate" else point.share


def _curve(axes: Axes, series: Series, look: Look, task: str | None, axis: str) -> None:
    found = [(x, drop) for point in series.points if (x := _x(point, axis)) is not None and (drop := point.drop(task))]
    found = [(x, drop) for x, drop in found if drop.finite and x > 0]
    if not found:
        axes.plot([], [], label=series.label, **_stroke(look))
        return
    xs, drops = zip(*found, strict=True)
    low, high = [drop.low for drop in drops], [drop.high for drop in drops]
    axes.fill_between(xs, low, high, color=LIGHT[look.color], alpha=0.13, linewidth=0)
    axes.plot(xs, [drop.value for drop in drops], label=series.label, **_stroke(look))


def _stroke(look: Look) -> dict[str, Any]:
    marks = {"marker": MARKERS[look.marker], "markersize": 4.2, "markeredgewidth": 0}
    return {"color": LIGHT[look.color], "linestyle": DASHES[look.dash], "linewidth": look.width, **marks}


def _dress(axes: Axes, axis: str, title: str) -> None:
    axes.set_title(title)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.grid(axis="y", color=GREY, linewidth=0.4, alpha=0.35)
    if axis == "rate":
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        axes.set_xlabel("parameters removed, %")
        return
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    halves = range(max(2, math.ceil(-math.log2(max(low, 1e-9)))) + 1)
    axes.set_xticks([2.0**-half for half in halves], [fraction(2.0**-half).replace("100 %", "1") for half in halves])
    axes.minorticks_off()
    axes.set_xlim(max(high, 1.0), low)
    axes.set_xlabel("bytes over dense float16")
