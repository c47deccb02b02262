"""One matrix to approximate, with what is worked out about it once for all budgets: its ellipsoid above all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid
from ellp.errors import InputError
from ellp.factor.project import project, weighted_error
from ellp.factor.svd import singular_ellipsoid
from ellp.factoring import lewis_ellipsoid
from ellp.rows import Rows, read_rows
from ellp.sweep.cache import Cache

FAINTEST = 1e-6  # of the mean importance: keeps weights divisible where they are folded into a wide matrix


@dataclass
class Problem:
    """A layer's matrix (n x d), the norm, and how much each row and each direction matters (None: all the same).

    A matrix wider than tall is rounded through its transpose, as :func:`ellp.factorize` does it, with the importances
    folded in.
    """

    matrix: Tensor
    p: float | None = None
    importance: Tensor | None = None
    seed: int = 0
    cache: Cache = field(default_factory=Cache)
    metric: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return int(rows), int(columns)

    @property
    def wide(self) -> bool:
        return self.shape[0] < self.shape[1]

    @cached_property
    def level(self) -> Tensor | None:
        """What each row of a wide matrix is multiplied by, so that its importance is in the matrix itself."""
        if self.importance is None or not self.wide:
            return None
        assert self.p is not None
        if self.p == 0:
            raise InputError("need no importance for a wide matrix at p = 0, where rows only count: leave it out")
        weight = self.importance.double() / self.importance.double().mean()
        return weight.clamp(min=FAINTEST).pow(1 / self.p)

    @cached_property
    def rows(self) -> Rows:
        """The rows that the ellipsoid rounds: at least as many as their columns."""
        if not self.wide:
            return read_rows(self.matrix, None if self.importance is None else self.importance.double(), None)
        folded = self.matrix if self.level is None else self.matrix.double() * self.level[:, None]
        return read_rows(folded.T, None, None)

    @cached_property
    def ellipsoid(self) -> Ellipsoid:
        """The ellipsoid of the rows; at p = 2 the SVD's. It depends on nothing but the matrix, p and importance."""
        assert self.p is not None, "a method that has no p asks for no ellipsoid"
        rows = "even" if self.importance is None else fingerprint(self.importance)
        name = f"ellipsoid-{fingerprint(self.matrix)}-{rows}-p{self.p:g}-seed{self.seed}"
        tensors, facts = self.cache.recall(name, self._found)
        axes, sigma = (tensors[part].to(self.matrix.device) for part in ("axes", "sigma"))
        return Ellipsoid(axes, sigma, **facts)

    def _found(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        assert self.p is not None
        if self.p == 2:
            found = singular_ellipsoid(self.rows, 2.0)
        else:
            weight = None if self.wide else self.importance
            found = lewis_ellipsoid(self.rows.matrix, self.p, weight, seed=self.seed, strict=False)
        facts = {"p": found.p, "alpha": found.alpha, "beta": found.beta, "steps": found.steps}
        return {"axes": found.axes.contiguous(), "sigma": found.sigma.contiguous()}, facts

    def factors(self, rank: int) -> tuple[Tensor, Tensor, float]:
        """Two factors of the matrix, in numbers that float16 holds, and the weighted l_p error they leave."""
        assert self.p is not None
        basis = self.ellipsoid.axes[:, :rank].double()
        left, right = (_stored(part) for part in project(self.rows, basis, torch.float32, self.p)[:2])
        error = weighted_error(self.rows, left, right, self.p)
        if not self.wide:
            return left, right, error
        level = self.level
        across = right.T if level is None else (right.T.double() / level[:, None]).float()
        return _stored(across), left.T.contiguous(), error


def _stored(factor: Tensor) -> Tensor:
    """A factor as it is read back from float16."""
    stored = factor.half().float()
    if not bool(torch.isfinite(stored).all()):
        raise InputError("need factors that fit float16, got an overflow: scale the matrix down first")
    return stored


def fingerprint(*tensors: Tensor) -> str:
    """A short mark of the exact numbers in tensors.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2)), fingerprint(torch.zeros(2)) == fingerprint()
    (True, False)
    """
    content = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        content.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
        content.update(whole.view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]
