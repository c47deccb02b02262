"""Tables to code: like trained ones, with axes of unequal size and rows of unequal worth, but made in an instant."""

from __future__ import annotations

import torch
from torch import Tensor


def table(rows: int = 700, columns: int = 48, seed: int = 0) -> Tensor:
    """Rows whose variance falls along rotated axes, around a mean that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(columns, columns, generator=generator)).Q
    spread = torch.logspace(0, -1, columns)
    return (torch.randn(rows, columns, generator=generator) * spread) @ turn.T + torch.linspace(-0.2, 0.3, columns)


def importances(rows: int) -> Tensor:
    """As of words: the first ones come often."""
    return 1 / (torch.arange(rows) + 5.0)


def metric(columns: int, seed: int = 1) -> Tensor:
    """Some directions count more than others."""
    turn = torch.linalg.qr(torch.randn(columns, columns, generator=torch.Generator().manual_seed(seed))).Q
    found = (turn * torch.linspace(2, 0.2, columns)) @ turn.T
    return (found + found.T) / 2


def weighted_error(true: Tensor, found: Tensor, importance: Tensor, weights: Tensor) -> float:
    """``sum_i c_i e_i H e_i^T`` over that of the mean row, from the definition."""

    def size(lost: Tensor) -> float:
        return float((importance.double() * ((lost.double() @ weights.double()) * lost.double()).sum(1)).sum())

    mean = (importance[:, None].double() * true.double()).sum(0) / importance.double().sum()
    return size(true - found) / size(true - mean)
