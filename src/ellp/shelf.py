"""Tensors kept in files in place of memory: the system reads what is used, and drops it when room is needed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor, nn

from ellp.errors import InputError, first_line

SMALL = 2**16  # bytes up to which a tensor stays where it is: a file each would cost more than it saves


def shelve(layer: nn.Module, folder: Path) -> None:
    """Move a layer's large tensors into files in ``folder``, which have no names and vanish with the tensors."""
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.nbytes > SMALL and tensor.device.type == "cpu":
            tensor.data = shelved(tensor.data, folder)


def shelved(tensor: Tensor, folder: Path) -> Tensor:
    """The same numbers, in a file. It is written, not only mapped, so that a full disk is an error and no crash."""
    try:
        with TemporaryFile(dir=folder) as file:
            tensor.contiguous().view(-1).view(torch.uint8).numpy().tofile(file)
            file.flush()
            mapped = np.memmap(file, np.uint8, "r+")
    except OSError as error:
        raise InputError(
            f"need room for {tensor.nbytes / 1e9:.1f} GB of factors in {folder}, got {first_line(error)}: make room "
            "there, or write to another disk"
        ) from None
    return torch.from_numpy(mapped).view(tensor.dtype).view(tensor.shape)
