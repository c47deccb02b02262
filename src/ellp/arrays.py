"""The caller's arrays: what kind, dtype and device they have, and how results go back the same way."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.rows import first_bad_row

Array = Any
"""A NumPy array or a torch tensor; results come back as the same kind."""


class Caller:
    """The caller's kind, dtype and device: arrays come in through here and go back the same way."""

    def __init__(self, array: Array) -> None:
        self.numpy = not isinstance(array, Tensor)
        tensor = as_tensor(array)
        if tensor.ndim != 2:
            raise InputError(f"need a matrix, got an array with shape {tuple(tensor.shape)}: pass two dimensions")
        if tensor.is_complex():
            raise InputError(f"need real numbers, got {tensor.dtype}: factor real and imaginary parts apart")
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.float64 if self.numpy else torch.get_default_dtype())
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise InputError(
                f"need float16, bfloat16, float32 or float64, got {tensor.dtype}: convert the matrix first"
            )
        self.matrix = tensor
        self.dtype = tensor.dtype

    def back(self, tensor: Tensor, wide: bool = False) -> Array:
        """A result as the caller's kind and dtype; ``wide`` results of half-precision input are float32."""
        dtype = torch.float32 if wide and self.dtype.itemsize == 2 else self.dtype
        tensor = tensor.to(dtype)
        return tensor.numpy() if self.numpy else tensor

    def importance(self, importance: Array | None) -> Tensor | None:
        if importance is None:
            return None
        weight = as_tensor(importance).to(self.matrix.device, torch.float64).reshape(-1)
        if weight.shape[0] != self.matrix.shape[0]:
            raise InputError(
                f"need one importance per row ({self.matrix.shape[0]}), got {weight.shape[0]}: check their count"
            )
        bad = ~torch.isfinite(weight) | (weight < 0)
        if bool(bad.any()):
            row = int(bad.to(torch.uint8).argmax())
            raise InputError(
                f"need importances that are finite and not negative, got {float(weight[row])} for row {row}: set it "
                "to 0 to ignore the row"
            )
        if float(weight.max()) == 0.0:
            raise InputError(
                "need at least one positive importance, got all zeros: leave importance out to weigh evenly"
            )
        return weight

    def metric(self, metric: Array | None) -> Tensor | None:
        """The factor S of the metric, ``H = S S^T`` (float64)."""
        return None if metric is None else metric_factor(metric, self.matrix.shape[1], self.matrix.device)


def metric_factor(metric: Array, d: int, device: torch.device | str = "cpu") -> Tensor:
    """The factor S of a d x d metric given as ``H = S S^T`` or as S (float64)."""
    given = as_tensor(metric).to(device, torch.float64)
    if given.shape != (d, d):
        raise InputError(
            f"need a {d} x {d} metric, one row per column of A, got shape {tuple(given.shape)}: check its size"
        )
    if not bool(torch.isfinite(given).all()):
        raise InputError(f"need a finite metric, got {first_bad_row(given)}: repair it, for instance by adding c * I")
    advice = "add a multiple of the identity"
    if torch.allclose(given, given.T, rtol=1e-6, atol=1e-9 * float(given.abs().max())):
        values, vectors = torch.linalg.eigh((given + given.T) / 2)
        if not float(values[0]) > d * torch.finfo(torch.float64).eps * float(values[-1]):
            raise InputError(
                f"need a positive definite metric, got eigenvalues from {float(values[0]):.3g} to "
                f"{float(values[-1]):.3g}: {advice}"
            )
        root: Tensor = (vectors * values.sqrt()) @ vectors.T
        return root
    values = torch.linalg.svdvals(given)
    if not float(values[-1]) > d * torch.finfo(torch.float64).eps * float(values[0]):
        raise InputError(f"need an invertible factor of the metric, got a singular one: {advice} to its square")
    return given


def as_tensor(array: Array) -> Tensor:
    """A caller's array as a dense tensor of real numbers, not copied where that can be helped."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided:
            raise InputError(f"need a dense tensor, got layout {array.layout}: call .to_dense() first")
        return array.detach()
    values = np.asarray(array)
    if values.dtype.kind not in "fiub":
        raise InputError(f"need real numbers, got dtype {values.dtype}: convert the array to a float dtype")
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    values = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
    with warnings.catch_warnings():  # a read-only array is fine: nothing here writes into the caller's memory
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)
