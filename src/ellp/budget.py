"""From a share of the parameters to ranks: of one matrix, or spread over many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ellp.errors import InputError


def rank_for(shape: tuple[int, ...], keep: float) -> int:
    """The largest rank whose two factors hold at most ``keep`` of the matrix's numbers.

    >>> rank_for((30522, 384), 0.72)  # the paper's "28 % compression"
    273
    """
    rows, columns = shape
    if not 0 < keep <= 1:
        raise InputError(f"need a share to keep above 0 and at most 1, got {keep}: 0.5 keeps half of the parameters")
    rank = int(keep * rows * columns / (rows + columns) * (1 + 1e-12))
    if rank < 1:
        smallest = (rows + columns) / (rows * columns)
        raise InputError(f"need room for rank 1, got a share of {keep}: keep at least {smallest:.2g}")
    return rank


def break_even(shape: tuple[int, ...]) -> int:
    """The largest rank at which the factors are strictly smaller than the matrix; 0 if there is none.

    >>> break_even((30522, 384))
    379
    """
    rows, columns = shape
    return (rows * columns - 1) // (rows + columns)


@dataclass(frozen=True)
class Curve:
    """A layer's shape, and ``losses[k]``: the squared error allowed at rank k, never increasing."""

    shape: tuple[int, int]
    losses: tuple[float, ...]

    @property
    def dense(self) -> int:
        """Parameters of the layer left as it is."""
        return self.shape[0] * self.shape[1]

    def cost(self, rank: int | None) -> int:
        return self.dense if rank is None else rank * sum(self.shape)

    def corners(self) -> list[tuple[int | None, float]]:
        """Ranks (None: left dense) on the lower convex hull of loss over parameters, from rank 1 on."""
        last = min(break_even(self.shape), len(self.losses) - 1)
        points: list[tuple[int | None, float]] = [(rank, self.losses[rank]) for rank in range(1, last + 1)]
        hull: list[tuple[int | None, float]] = []
        for point in [*points, (None, 0.0)]:
            while len(hull) > 1 and self._gain(hull[-2], hull[-1]) <= self._gain(hull[-2], point):
                hull.pop()
            hull.append(point)
        return hull

    def _gain(self, here: tuple[int | None, float], there: tuple[int | None, float]) -> float:
        return (here[1] - there[1]) / (self.cost(there[0]) - self.cost(here[0]))


def spread(curves: Sequence[Curve], keep: float) -> list[int | None]:
    """A rank for every layer (None: dense) so that all together keep at most ``keep`` of the parameters.

    Parameters go where each buys the largest fall of the certified loss. Each layer's loss is made convex first, so
    that taking the best offer repeatedly is the optimum of the convexified problem.
    """
    room = keep * sum(curve.dense for curve in curves) * (1 + 1e-12) - sum(curve.cost(1) for curve in curves)
    if room < 0:
        smallest = sum(curve.cost(1) for curve in curves) / sum(curve.dense for curve in curves)
        raise InputError(f"need room for rank 1 in every layer, got a share of {keep}: keep at least {smallest:.2g}")
    offers = []
    for index, curve in enumerate(curves):
        corners = curve.corners()
        offers += [(-curve._gain(*pair), index, *pair) for pair in pairwise(corners)]
    ranks: list[int | None] = [1 for _ in curves]
    for _, index, (start, _loss), (end, _less) in sorted(offers, key=lambda offer: offer[:2]):
        curve = curves[index]
        if ranks[index] != start or start is None:
            continue  # an earlier offer of this layer did not fit whole
        step = curve.cost(end) - curve.cost(start)
        if step > room:
            most = break_even(curve.shape) if end is None else end
            end = min(most, start + int(room // sum(curve.shape)))
            step = curve.cost(end) - curve.cost(start)
        ranks[index] = end
        room -= step
    return ranks
