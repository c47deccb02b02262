"""Other numbers in the place of a model's layers, for a while; and what they take and lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ellp.sweep.methods import Approximation

BLOCK = 4096  # rows at a time


@contextmanager
def swapped(model: nn.Module, matrices: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other numbers in some layers, and in all that are tied to them; its own again afterwards.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
    >>> with swapped(model, {"0": torch.eye(2)}):
    ...     model(torch.tensor([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    weights: dict[str, Any] = {name: model.get_submodule(name).weight for name in matrices}
    before = {name: weight.data for name, weight in weights.items()}
    try:
        for name, weight in weights.items():
            weight.data = matrices[name].to(before[name]).contiguous()
        yield
    finally:
        for name, weight in weights.items():
            weight.data = before[name]


def sizes(dense: Mapping[str, Tensor], found: Mapping[str, Approximation]) -> dict[str, Any]:
    """What the approximations of all layers take together, and how far they are from the layers."""
    before = sum(matrix.numel() for matrix in dense.values())
    ranks = {part.rank for part in found.values()}
    parameters = [part.parameters for part in found.values()]
    counted = sum(part or 0 for part in parameters) if None not in parameters else None
    size = sum(part.bytes for part in found.values())
    errors = sum(_norm_sums(matrix, found[name].matrix) for name, matrix in dense.items())
    return {
        "layer": ",".join(dense),
        "rate": None if counted is None else 1 - counted / before,
        "rank": ranks.pop() if len(ranks) == 1 else None,
        "parameters": counted,
        "bytes": size,
        "bytes_share": size / (2 * before),
        "certificate": _certificate(found),
        "relative_error": _ratios(errors) if isinstance(errors, Tensor) else None,
    }


def _certificate(found: Mapping[str, Approximation]) -> dict[str, Any] | None:
    """Of several layers the weakest proof, the sum of the errors and the most steps."""
    proofs = [part.proof for part in found.values() if part.proof is not None]
    if len(proofs) < len(found):
        return None
    return {
        "distortion": max(proof.distortion for proof in proofs),
        "error": sum(proof.error for proof in proofs),
        "steps": max(proof.steps for proof in proofs),
    }


def _norm_sums(matrix: Tensor, other: Tensor) -> Tensor:
    """Sums of absolute values and of squares, of the difference and of the matrix."""
    found = torch.zeros(2, 2, dtype=torch.float64, device=matrix.device)
    for first in range(0, matrix.shape[0], BLOCK):
        block = matrix[first : first + BLOCK].float()
        for row, part in enumerate((block - other[first : first + BLOCK].float(), block)):
            found[row, 0] += part.abs().sum(dtype=torch.float64)
            found[row, 1] += torch.linalg.vector_norm(part, dtype=torch.float64).square()
    return found.cpu()


def _ratios(sums: Tensor) -> dict[str, float]:
    ratios = torch.where(sums[0] == 0, sums[0], sums[0] / sums[1])
    return {"l1": float(ratios[0]), "l2": float(ratios[1].sqrt())}
