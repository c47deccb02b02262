"""Draw the pictures of the documentation from the package itself: ``python examples/figures.py [FOLDER]``.

Everything shown is computed here, with fixed seeds; running it again writes the same files.
"""

from __future__ import annotations

import io
import math
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import ellp
from ellp.ellipsoid.lewis import careful_frame
from ellp.ellipsoid.loewner import Body, loewner
from ellp.rows import read_rows

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
INK, GREY, BLUE, ORANGE, GREEN = "#222222", "#8a8a8a", "#0072b2", "#d55e00", "#009e73"  # safe for colour-blind eyes
PALE = "#d1e5f0"
STYLE = {
    "svg.hashsalt": "ellp",  # element ids then depend on the drawing alone
    "svg.fonttype": "path",  # the same letters everywhere
    "figure.facecolor": "white",  # opaque: dark lines stay readable on a dark page
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


# A line and a few outliers ------------------------------------------------------------------------------------------

TRUE_ANGLE = 25.0
LINES = {2.0: (ORANGE, "--", "p = 2 (SVD)"), 1.0: (BLUE, "-", "p = 1"), 0.0: (GREEN, "-.", "p = 0")}


def near_a_line(count: int = 150) -> np.ndarray:
    """Points scattered along the line through 0 at 25 degrees."""
    random = np.random.default_rng(0)
    along, across = random.normal(size=count), 0.12 * random.normal(size=count)
    angle = math.radians(TRUE_ANGLE)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return np.stack([along, across], axis=1) @ turn


def strays(distance: float, count: int = 10) -> np.ndarray:
    """Points about ``distance`` away from 0, on both sides, near the direction of 112 degrees."""
    random = np.random.default_rng(1)
    angles = np.radians(112.0 + 6.0 * random.normal(size=count))
    reach = distance * (1 + 0.12 * random.normal(size=count)) * (-1.0) ** np.arange(count)
    return np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)


def direction(points: np.ndarray, p: float) -> float:
    """Angle, in degrees, of the one direction that ``factorize`` keeps."""
    x, y = ellp.factorize(points, rank=1, p=p).right[0]
    return math.degrees(math.atan2(y, x)) % 180


def line() -> Figure:
    """The direction kept at p = 2, 1 and 0: without outliers, with ten, and as those move away."""
    points, far = near_a_line(), strays(4.5)
    figure, (clean, spoiled, curve) = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    _scatter(clean, points, far[:0], "150 points near a line")
    _scatter(spoiled, points, far, "and 10 far from it")
    distances = np.geomspace(1, 1000, 61)
    for p, (colour, dash, name) in LINES.items():
        turned = [direction(np.concatenate([points, strays(reach)]), p) for reach in distances]
        off = [min(abs(angle - TRUE_ANGLE), 180 - abs(angle - TRUE_ANGLE)) for angle in turned]
        curve.plot(distances, np.round(off, 2), color=colour, linestyle=dash, linewidth=2, label=name)
    curve.set(xscale="log", xlabel="distance of the ten points", ylabel="degrees off the line", ylim=(-3, 93))
    curve.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    curve.set_yticks([0, 30, 60, 90])
    curve.set_title("the same ten, farther and farther")
    figure.legend(*curve.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _scatter(axes: Axes, points: np.ndarray, far: np.ndarray, title: str) -> None:
    everything = np.concatenate([points, far])
    for p, (colour, dash, _) in LINES.items():
        angle = math.radians(direction(everything, p))
        axes.axline((0, 0), (math.cos(angle), math.sin(angle)), color=colour, linestyle=dash, linewidth=2, zorder=2)
    axes.plot(*np.round(points.T, 3), "o", color=GREY, markersize=3.3, markeredgewidth=0, zorder=1)
    axes.plot(*np.round(far.T, 3), "X", color=INK, markersize=6.6, markeredgewidth=0, zorder=3)
    axes.set_title(title)
    _window(axes, 5.8)


# Unit balls and their ellipsoids --------------------------------------------------------------------------------------

ROWS = np.array([[1.0, 0.15], [0.35, 0.8], [-0.5, 0.75], [0.25, -0.3]])
TURN = np.linspace(0, 2 * math.pi, 361)
CIRCLE = np.stack([np.cos(TURN), np.sin(TURN)])
SMOOTH = CIRCLE[:, ::3]  # an ellipse needs fewer points than a ball with corners


def cost(rows: np.ndarray, x: np.ndarray, p: float) -> np.ndarray:
    """``||rows x||_p`` of every column of ``x``."""
    values = np.abs(rows @ x)
    return values.max(axis=0) if math.isinf(p) else (values**p).sum(axis=0) ** (1 / p)


def ball(rows: np.ndarray, p: float) -> np.ndarray:
    """The boundary of ``{x : ||rows x||_p <= 1}``."""
    return CIRCLE / cost(rows, CIRCLE, p)


def around(ellipsoid: ellp.Ellipsoid, radius: float) -> np.ndarray:
    """The boundary of ``{x : |x|_M <= radius}``."""
    return ellipsoid.axes @ (SMOOTH * (radius / ellipsoid.sigma)[:, None])


def radii(ellipsoid: ellp.Ellipsoid) -> tuple[float, float]:
    """Of the largest ``|x|_M`` ball proved to be inside the unit ball, and of the smallest proved to contain it."""
    root = 1.0 if math.isinf(ellipsoid.p) else 1 / ellipsoid.p
    return ellipsoid.beta**-root, ellipsoid.alpha**root


def balls() -> Figure:
    """Unit balls of ``||A x||_p`` between two copies of their Lewis ellipsoid."""
    figure, grid = plt.subplots(2, 3, figsize=(9, 6.5), layout="constrained")
    for axes, p in zip(grid.flat, (0.5, 1.0, 1.5, 2.0, 4.0, math.inf), strict=True):
        found = ellp.lewis_ellipsoid(ROWS, p, tol=1e-6, max_steps=5000)
        inner, outer = radii(found)
        unit = ball(ROWS, p)
        axes.fill(*unit, facecolor=PALE, edgecolor=BLUE, linewidth=2, label="unit ball of ‖Ax‖ₚ")
        axes.plot(*around(found, outer), color=ORANGE, linewidth=1.6, linestyle="--", label="ellipsoid, outside")
        axes.plot(*around(found, inner), color=GREEN, linewidth=1.6, linestyle="-.", label="ellipsoid, inside")
        name = "∞" if math.isinf(p) else f"{p:g}"
        axes.set_title(f"p = {name}:  outer / inner = {outer / inner:.3f}")
        _window(axes, 1.06 * float(np.abs(around(found, outer)).max()))
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# The ellipsoid method -------------------------------------------------------------------------------------------------

SEED = 2725


def uneven_rows(seed: int = SEED) -> np.ndarray:
    """A few rows of very different length, for which the method has to cut more than once."""
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 12))
    angle = random.uniform(0, math.pi, count)
    length = np.exp(1.2 * random.normal(size=count))
    return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)


def ellipsoid_method() -> Figure:
    """Every state of the ellipsoid method at p = 1, and the Lewis ellipsoid of the same ball."""
    rows = read_rows(torch.from_numpy(uneven_rows()), None, None)
    white = rows.matrix @ careful_frame(rows, 1.0).inverse  # where the method works: its first ellipsoid is a disc
    body = Body(white, rows.weight, 1.0)
    states: list[Tensor] = []
    loewner(rows, 1.0, watch=states.append)
    reach = max(float(shape.diagonal().max()) for shape in states) ** 0.5
    unit = ball(white.numpy(), 1.0)
    figure, grid = plt.subplots(1, len(states) + 1, figsize=(13.5, 3.6), layout="constrained")
    for cuts, (axes, shape) in enumerate(zip(grid[:-1], states, strict=True)):
        _round(axes, unit, torch.linalg.cholesky(shape).numpy() @ SMOOTH, reach)
        _tests(axes, body, shape, last=cuts + 1 == len(states))
        axes.set_title(f"after {cuts} cut{'s' * (cuts > 1)}" if cuts else "start")
    lewis = ellp.lewis_ellipsoid(white.numpy(), 1.0, tol=1e-6)
    _round(grid[-1], unit, around(lewis, radii(lewis)[1]), reach)
    grid[-1].set_title("Lewis ellipsoid")
    named = {name: mark for axes in grid for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=len(named))
    return figure


def _round(axes: Axes, unit: np.ndarray, ellipse: np.ndarray, reach: float) -> None:
    axes.fill(*unit, facecolor=PALE, edgecolor=BLUE, linewidth=2, label="unit ball of ‖Ax‖₁")
    axes.plot(*ellipse, color=ORANGE, linewidth=1.8, linestyle="--", label="ellipsoid around it")
    _window(axes, 1.04 * reach)


def _tests(axes: Axes, body: Body, shape: Tensor, last: bool) -> None:
    """The points that are tested, and the pair of lines along which the next cut is made."""
    values, vectors = torch.linalg.eigh(shape)
    ends = vectors * values.sqrt()
    points = torch.cat([ends, -ends], dim=1) / math.sqrt(body.width + 1)
    inside = body.gauge(points) <= 1
    axes.scatter(*points[:, inside], s=26, color=GREEN, zorder=3, label="test point, inside")
    axes.scatter(*points[:, ~inside], s=40, color=ORANGE, marker="X", linewidths=0, zorder=3, label="outside")
    if last:
        return
    normal = body.subgradient(ends[:, int(body.gauge(ends).argmax())])
    foot, along = (normal / normal.square().sum()).numpy(), np.array([-float(normal[1]), float(normal[0])])
    axes.axline(foot, foot + along, color=INK, linewidth=1, label="next cut")
    axes.axline(-foot, -foot + along, color=INK, linewidth=1)


def _window(axes: Axes, reach: float) -> None:
    """A square around 0 with faint axes and nothing else."""
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[0], yticks=[0])
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    axes.grid(color=GREY, linewidth=0.5, alpha=0.4)
    axes.spines[:].set_visible(False)


FIGURES = {"line": line, "balls": balls, "ellipsoid-method": ellipsoid_method}


def svg(figure: Figure) -> str:
    """The drawing as text: no date, and coordinates to a hundredth of a point."""
    page = io.StringIO()
    figure.savefig(page, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"-?\d+\.\d+", _short, path[0]), page.getvalue())


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]) + 0.0:.2f}".rstrip("0").rstrip(".")


def main(folder: Path = IMAGES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            (folder / f"{name}.svg").write_text(svg(draw()), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
