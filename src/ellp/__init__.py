"""Robust low-rank factorization: round the l_p unit ball of a matrix by an ellipsoid and keep its main axes.

Names are loaded on first use, so that ``import ellp`` and ``ellp --help`` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ellp import plugin
from ellp.errors import EllpError, InputError, NotConverged

if TYPE_CHECKING:
    from ellp.ellipsoid.certificate import Ellipsoid
    from ellp.factor.factors import Certificate, Factors, RelativeError, relative_error
    from ellp.factoring import (
        factorize,
        lewis_ellipsoid,
        loewner_ellipsoid,
        sketched_ellipsoid,
        svd,
    )
    from ellp.hf import EllpConfig
    from ellp.plans import LayerPlan, Options, Plan
    from ellp.surgery import compress, plan

_HOMES = {
    "Ellipsoid": "ellp.ellipsoid.certificate",
    "Certificate": "ellp.factor.factors",
    "Factors": "ellp.factor.factors",
    "RelativeError": "ellp.factor.factors",
    "factorize": "ellp.factoring",
    "lewis_ellipsoid": "ellp.factoring",
    "loewner_ellipsoid": "ellp.factoring",
    "relative_error": "ellp.factor.factors",
    "sketched_ellipsoid": "ellp.factoring",
    "svd": "ellp.factoring",
    "LayerPlan": "ellp.plans",
    "Options": "ellp.plans",
    "Plan": "ellp.plans",
    "compress": "ellp.surgery",
    "plan": "ellp.surgery",
    "EllpConfig": "ellp.hf",
}

__all__ = [
    "Certificate",
    "Ellipsoid",
    "EllpConfig",
    "EllpError",
    "Factors",
    "InputError",
    "LayerPlan",
    "NotConverged",
    "Options",
    "Plan",
    "RelativeError",
    "compress",
    "factorize",
    "lewis_ellipsoid",
    "loewner_ellipsoid",
    "plan",
    "relative_error",
    "sketched_ellipsoid",
    "svd",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("ellp")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ellp' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__


plugin.register()
