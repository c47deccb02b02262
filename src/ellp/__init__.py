"""Robust low-rank factorization: round the l_p unit ball of a matrix by an ellipsoid and keep its main axes."""

from importlib.metadata import version

from ellp.ellipsoid.certificate import Ellipsoid
from ellp.errors import EllpError, InputError, NotConverged
from ellp.factorize import (
    Certificate,
    Factors,
    factorize,
    lewis_ellipsoid,
    loewner_ellipsoid,
    relative_error,
    sketched_ellipsoid,
    svd,
)

__version__ = version("ellp")

__all__ = [
    "Certificate",
    "Ellipsoid",
    "EllpError",
    "Factors",
    "InputError",
    "NotConverged",
    "factorize",
    "lewis_ellipsoid",
    "loewner_ellipsoid",
    "relative_error",
    "sketched_ellipsoid",
    "svd",
]
