"""What a sweep compares: one small registry from a method's name to the function that approximates a matrix.

A method is a function from a :class:`Problem` (one layer's matrix with everything worked out about it so far) and a
:class:`Budget` to an :class:`Approximation`. To add one, call :func:`register`; nothing else has to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from torch import Tensor

from ellp.budget import rank_for
from ellp.code.rounding import round_to_bits, rounded_bytes
from ellp.code.search import Coded, code_table, decode_table
from ellp.code.tapered import taper_table
from ellp.errors import InputError
from ellp.sweep.problem import Problem

UNIFORM, FISHER = "uniform", "fisher"
TASK_TEXT = "task-text"  # the training texts of a model's own tasks, without their labels


@dataclass(frozen=True)
class Proof:
    """What an ellipsoid proves, and the error ``sum_i c_i sum_j |E_ij|^p`` measured on the factors as stored."""

    distortion: float
    error: float
    steps: int


@dataclass(frozen=True)
class Approximation:
    """A matrix read back from its compressed form, which takes ``bytes``, everything counted."""

    matrix: Tensor
    bytes: int
    rank: int | None = None
    parameters: int | None = None
    proof: Proof | None = None


class Approximate(Protocol):
    """``keep`` is the share of the parameters, ``share`` that of the float16 bytes; the one the method lives by is
    given."""

    def __call__(self, problem: Problem, keep: float | None, share: float | None) -> Approximation: ...


@dataclass(frozen=True)
class Method:
    """A name, the function behind it, the budget it lives by, and which of the sweep's axes apply to it.

    ``p`` and ``importance`` are what the method has where the axis does not apply; None where it has none.
    ``sensitive`` methods weigh the directions of errors, too, unless all rows weigh the same.
    """

    name: str
    approximate: Approximate
    budget: Literal["keep", "bytes", "none"] = "keep"
    axes: tuple[Literal["p", "importance"], ...] = ("p", "importance")
    p: float | None = None
    importance: str | None = None
    sensitive: bool = False


METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Make a method known under its name.

    >>> from ellp.sweep.methods import METHODS
    >>> sorted(METHODS)[:3]
    ['coded', 'fwsvd', 'int2']
    """
    if method.name in METHODS:
        raise InputError(f"need a new name for a method, got {method.name!r}, which is taken: choose another")
    METHODS[method.name] = method
    return method


def low_rank(problem: Problem, keep: float | None, share: float | None = None) -> Approximation:
    """The leading axes of the problem's ellipsoid, as float16 factors that hold ``keep`` of the parameters.

    The ellipsoid gives the factors of every rank, so it is found once for all budgets.
    """
    assert keep is not None
    rank = rank_for(problem.shape, keep)
    left, right, error = problem.factors(rank)
    parameters = rank * sum(problem.shape)
    ellipsoid = problem.ellipsoid
    proof = Proof(ellipsoid.distortion, error, ellipsoid.steps)
    return Approximation(left @ right, 2 * parameters, rank, parameters, proof)


def rounded(problem: Problem, keep: float | None, share: float | None, bits: int) -> Approximation:
    """Every number rounded to ``bits``, in groups with a float16 scale."""
    return Approximation(round_to_bits(problem.matrix, bits), rounded_bytes(problem.shape, bits))


def coded(problem: Problem, keep: float | None, share: float | None) -> Approximation:
    """The best code of a table in ``share`` of its float16 bytes."""
    assert share is not None
    size = int(2 * share * problem.matrix.numel())
    return _read(problem, code_table(problem.matrix, size, problem.importance, problem.metric, seed=problem.seed))


def tapered(problem: Problem, keep: float | None, share: float | None) -> Approximation:
    """Rows of as many numbers as they deserve, ``keep`` of the parameters in all."""
    assert keep is not None
    numbers = int(keep * problem.matrix.numel())
    found = taper_table(problem.matrix, numbers, problem.importance, problem.metric, seed=problem.seed)
    read = _read(problem, found)
    return Approximation(read.matrix, 2 * numbers, parameters=numbers)


def _read(problem: Problem, found: Coded) -> Approximation:
    return Approximation(decode_table(found, problem.shape).to(problem.matrix.dtype), found.bytes)


register(Method("svd", low_rank, axes=(), p=2.0, importance=UNIFORM))
register(Method("lp", low_rank))
register(Method("fwsvd", low_rank, axes=(), p=2.0, importance=FISHER))
for _bits in (8, 4, 3, 2):
    register(Method(f"int{_bits}", partial(rounded, bits=_bits), budget="none", axes=()))
register(Method("coded", coded, budget="bytes", axes=("importance",), p=1.0, sensitive=True))
register(Method("tapered", tapered, axes=("importance",), p=1.0, sensitive=True))
